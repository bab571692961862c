"""The server's two times."""

from wbsp.ps.clock import Clock


def test_the_run_s_time_resumes_from_an_earlier_server_and_is_never_set_back():
    at = [1000.0]
    clock = Clock(lambda: at[0])
    assert clock.run() == 0
    at[0] += 5
    clock.go_on(60)
    assert clock.run() == 60
    clock.go_on(30)
    assert clock.run() == 60, "another worker has seen less of it"
    at[0] += 1
    assert clock.run() == 61


def test_a_processs_own_time_is_never_set():
    at = [1000.0]
    clock = Clock(lambda: at[0])
    clock.go_on(60)
    assert clock.now() == 1000
