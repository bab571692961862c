# Completion of the command `wbsp` in bash; written by scripts/completion.py.
_wbsp() {
    local words
    case ${COMP_WORDS[1]} in
        run) words='--band_width_limit= --base_dir= --best --best= --best_patience= --check_period= --connect_timeout= --epochs= --fail_if_lost --help --host= --log_root= --max_restarts= --max_steps= --one_run --outer= --outer_option= --port_base= --resume --server= --shards --shards= --site= --sync= --sync_option= --target= --token_file= --transport= --until= --upstream= --upstream_token_file= --watch_port= --wire= --worker_num= --workers=' ;;
        ps) words='--band_width_limit= --base_dir= --best= --best_patience= --check_period= --connect_timeout= --epochs= --fail_if_lost --help --host= --log_root= --max_steps= --one_run --outer= --outer_option= --port_base= --resume --shard --shards= --site= --standby_of= --sync= --sync_option= --target= --token_file= --transport= --until= --upstream= --upstream_token_file= --watch_port= --wire= --worker_num=' ;;
        simulate) words='--advise= --apply_seconds= --bandwidth= --batch_size= --check_period= --cluster= --data_dir= --dataset= --epochs= --examples= --figures --help --heterogeneity= --jitter= --latency= --lr= --lr_decays= --lr_steps= --max_steps= --model= --model_bytes= --optimizer= --out= --outer= --outer_option= --seed= --seeds= --server_bandwidth= --shards= --shared_data --step_seconds= --sync= --sync_option= --target_accuracy= --test_images= --until= --wire= --workers=' ;;
        advise) words='--advise= --apply_seconds= --bandwidth= --batch_size= --check_period= --cluster= --data_dir= --dataset= --epochs= --examples= --figures --help --heterogeneity= --jitter= --latency= --lr= --lr_decays= --lr_steps= --max_steps= --model= --model_bytes= --optimizer= --out= --outer= --outer_option= --seed= --seeds= --server_bandwidth= --shards= --shared_data --step_seconds= --sync= --sync_option= --target_accuracy= --test_images= --until= --wire= --workers=' ;;
        watch) words='--help --http= --out= --token_file=' ;;
        figures) words='--help --out= --target= --window=' ;;
        ray) words='--help --max_restarts= --name= --placement_timeout= --ps= --resources= --standby --storage= --strategy= --sync= --workers=' ;;
        *) words='run ps simulate advise watch figures ray models' ;;
    esac
    [ "$COMP_CWORD" -gt 1 ] || words='run ps simulate advise watch figures ray models --help --version'
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -o nospace -F _wbsp wbsp
