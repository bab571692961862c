"""Modules of PyTorch as one flat vector; `test_values.py` runs these tests in another process."""

import numpy as np
import pytest
import torch

from wbsp.replica.values import Values

F32 = np.float32


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2),
                               torch.nn.Linear(2, 2))


def names(values):
    return [spec.name for spec in values.layout]


def adopt(replica, vector, how="replace"):
    replica.adopt(replica.bring(np.asarray(vector, F32)), how)


def update(replica):
    replica.stepped()
    return np.array(replica.cut())


def test_parameters_that_take_no_gradient_are_frozen_and_buffers_are_not():
    model = network()
    model[0].weight.requires_grad = False
    values = Values(model)
    assert [spec.name for spec in values.frozen.layout] == ["0.weight"]
    assert names(values) == names(Values(model, frozen=[]))[1:]
    assert "1.running_mean" in names(values)
    assert values.frozen.take(np.arange(6, dtype=F32)) == ["0.weight"]
    assert model[0].weight.ravel().tolist() == [*range(6)] and values.open().read().size == 16
    assert Values(model, frozen=["0"]).frozen.size == 8


def test_a_module_is_what_its_state_dict_has_of_floats():
    model = network()
    values = Values(model)
    whole = {name: tensor for name, tensor in model.state_dict().items()
             if tensor.is_floating_point()}
    assert names(values) == list(whole) and "1.num_batches_tracked" not in whole
    assert [spec.shape for spec in values.layout] == [tuple(t.shape) for t in whole.values()]
    replica = values.open()
    assert np.array_equal(replica.read(), np.concatenate([t.ravel() for t in whole.values()]))
    adopt(replica, np.arange(22))
    assert np.array_equal(model[1].running_var.numpy(), [14, 15])
    with torch.no_grad():
        model[2].bias += 1
    assert np.array_equal(update(replica), [*[0] * 20, 1, 1])
    assert model[0].weight.grad is None and not list(values.remarks())


def test_an_adoption_keeps_the_optimizers_state():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        adopt(Values(model).open(), np.zeros(22))
    assert len(optimizer.state) == 6 and all(
        optimizer.state[p]["momentum_buffer"].shape == p.shape for p in model.parameters())


def test_a_tied_parameter_counts_once():
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(4, 2),
                                 "head": torch.nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    assert names(Values(model)) == ["embedding.weight"]
    assert names(Values({"a": model, "b": model["head"]})) == ["a/embedding.weight"]


def test_a_buffer_that_its_module_replaces_is_followed():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("cache", torch.zeros(2), persistent=False)

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)

    model = Mean()
    values = Values(model)
    assert names(values) == ["mean"]
    replica = values.open()
    model(torch.ones(4, 2))
    assert np.array_equal(update(replica), [0.5, 0.5])
    adopt(replica, [3, 4])
    assert np.array_equal(model.mean, [3, 4])


def test_wrappers_do_not_change_names():
    model = network()
    plain = names(Values(model))
    assert names(Values(torch.compile(model))) == plain
    assert names(Values(torch.nn.DataParallel(model))) == plain
    model[0] = torch.compile(model[0])
    assert names(Values(model)) == plain


def test_a_parametrized_module_is_its_originals():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    values = Values(layer)
    assert names(values) == list(layer.state_dict())
    replica = values.open()
    adopt(replica, np.arange(len(replica.read())))
    assert np.array_equal(replica.read(), np.arange(len(replica.read())))


@pytest.mark.parametrize("where", ["on a CPU", "on devices"])
def test_bfloat16_has_no_progress_without_a_step(monkeypatch, where):
    model = network().to(torch.bfloat16)
    values = Values(model)
    if where == "on devices":
        from wbsp.replica import torch as back_end
        monkeypatch.setattr(back_end, "OneByOne", lambda chosen, layout, *_:
                            back_end.OnDevices(chosen, layout))
    replica = values.open()
    adopt(replica, np.full(22, 1 + 2.0**-10))  # which bfloat16 does not have
    assert not update(replica).any()
    with torch.no_grad():
        model[2].bias += 1
    replica.stepped()
    adopt(replica, np.full(22, 3 + 2.0**-9), "rebase")
    assert np.array_equal(update(replica), [*[0] * 20, 1, 1])
    assert model[2].bias.dtype == torch.bfloat16


def test_channels_last_and_views_are_read_and_written_right():
    layer = torch.nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
    replica = Values(layer).open()
    assert np.array_equal(replica.read(), layer.weight.detach().contiguous().numpy().ravel())
    adopt(replica, np.arange(48))
    assert np.array_equal(layer.weight.detach().contiguous().numpy().ravel(), np.arange(48))


def test_float64_is_reported():
    (line,) = Values(torch.nn.Linear(2, 2).double()).remarks()
    assert line.startswith("weight and 1 more are float64, but versions are float32")


def other_layer(model):
    model[0] = torch.nn.Linear(3, 2)


def other_head(model):
    model[2] = torch.nn.Linear(2, 5)


def one_more(model):
    model.add_module("head", torch.nn.Linear(2, 2))


def one_less(model):
    del model[2]


def other_shape(model):  # as resize_token_embeddings does
    model[2].weight = torch.nn.Parameter(torch.zeros(4, 2))


def other_type(model):
    model.half()


def parametrized(model):
    torch.nn.utils.parametrizations.weight_norm(model[0])


def tied(model):
    model[2].bias = model[0].bias


def no_more_batch_norm(model):
    model[1] = torch.nn.Identity()


@pytest.mark.parametrize("change, line", [
    (other_layer, "0.weight was replaced by another variable inside the block, and 1 more have "
                  "changed: versions would not carry that, and each worker would keep its own. "
                  "Change the model before the block"),
    (other_head, r"2.weight was replaced by another variable .its shape was \(2, 2\) and is "
                 r"\(5, 2\)\) inside the block"),
    (one_more, "head.weight was added to the model inside the block"),
    (one_less, "2.weight was removed from the model inside the block"),
    (other_shape, r"2.weight has changed its shape .it was \(2, 2\) and is \(4, 2\)\) inside"),
    (other_type, "0.weight has changed its type from float32 to float16 inside the block"),
    (parametrized, "0.weight was removed from the model inside the block, and 2 more"),
    (tied, "2.bias was removed from the model inside the block"),
    (no_more_batch_norm, "1.weight was removed from the model inside the block, and 3 more")])
def test_a_model_that_changes_inside_the_block_is_named_in_one_line(change, line):
    model = network()
    values = Values(model)
    values.check()
    change(model)
    with pytest.raises(ValueError, match=f"^{line}") as error:
        values.check()
    assert "\n" not in str(error.value)


def test_adapters_that_are_put_into_a_model_are_named():
    peft = pytest.importorskip("peft", reason="pip install -e '.[huggingface]'")
    model = network()
    values = Values(model)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["0"]))
    with pytest.raises(ValueError, match="^0.weight was removed from the model inside the block"):
        values.check()


def test_a_model_with_unchanged_variables_may_be_loaded_frozen_and_wrapped():
    class Shown(torch.nn.Linear):
        """Has an entry in its state_dict that is made anew at each call."""

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}scale"] = self.weight.detach().abs().max()[None]

    model = torch.nn.Sequential(*network(), Shown(2, 2))
    values = Values(model)
    model(torch.zeros(4, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()
                           if "scale" not in name}, assign=True, strict=False)
    values.check()
    model[0].weight.requires_grad = False
    model[1].running_mean = model[1].running_mean + 1
    model[1] = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model[1])  # with the same variables
    model[2] = torch.compile(model[2])
    model.eval()
    values.check()


def test_unsupported_torch_modules_are_refused_in_one_line():
    class Complex(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    with torch.device("meta"):
        meta = torch.nn.Linear(2, 2)
    for given, line in [(torch.nn.LazyLinear(2), "weight is of a lazy module"),
                        (meta, "weight is on PyTorch's meta device"),
                        (Complex(), "w is torch.complex64, but wbsp trains real numbers"),
                        (torch.nn.ReLU(), "a ReLU has no variables of floats"),
                        ({"m": torch.nn.Linear(2, 2), "o": 3}, "o is an int, among values"),
                        ({}, "cannot train a dict: give a Keras model, a torch")]:
        with pytest.raises(ValueError, match=line) as error:
            Values(given)
        assert "\n" not in str(error.value)


def test_a_module_that_is_divided_is_refused_in_one_line():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = distribute_module(network(), init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="^0.weight, a DTensor, is divided among processes"):
            Values(model)
    finally:
        dist.destroy_process_group()
