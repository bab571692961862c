# Completion of the command `wbsp` in bash; written by scripts/completion.py.
_wbsp() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flag= kept= words=
    if [ "$word" = = ]; then # bash has --sync=p as three words
        flag=$before word=
    elif [ "$before" = = ]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $word == --*=* ]]; then # zsh has it as one
        flag=${word%%=*} kept=${word%%=*}= word=${word#*=}
    fi
    if [ -n "$flag" ]; then
        [[ $word != *,* ]] || kept+=${word%,*}, word=${word##*,}
        case $flag in
            --sync) words='bsp asp ssp wbsp pcc dssp adsp lbbsp nbsync elasticbsp saps esync localsgd fedasync ksync rennala ringmaster msync decoupled auto' ;;
            --wire) words='float32 bfloat16 int8 topk:0.01' ;;
            --model) words='cnn alexnet small gpt timing' ;;
            --cluster) words='changing equal-8 federated four-sites h1 h1-8 h2 h2-8 h3 h3-8 mild mixed-8 one-slow pair stable straggler three three-sites two-sites wan' ;;
            --advise) words='changing equal-8 federated four-sites h1 h1-8 h2 h2-8 h3 h3-8 mild mixed-8 one-slow pair stable straggler three three-sites two-sites wan' ;;
            --outer) words='identity nesterov qhm delayed-nesterov' ;;
            --transport) words='auto tcp' ;;
            --dataset) words='cifar10 shapes10 stdlib' ;;
            --heterogeneity) words='none H1 H2 H3 imagenet' ;;
            --lr_steps) words='own mean' ;;
        esac
    elif [ "$COMP_CWORD" -le 1 ]; then
        words='run ps simulate advise watch figures export ray models --help --version'
    else
        case ${COMP_WORDS[1]} in
            run) words='--band_width_limit= --base_dir= --best= --best_patience= --check_period= --connect_timeout= --epochs= --fail_if_lost --help --host= --hosts= --log_root= --max_restarts= --max_steps= --one_run --outer= --outer_option= --port_base= --resume --server= --shards= --site= --sync= --sync_option= --target= --token_file= --transport= --until= --upstream= --upstream_token_file= --wire= --worker_num= --workers=' ;;
            ps) words='--band_width_limit= --base_dir= --best= --best_patience= --check_period= --connect_timeout= --epochs= --fail_if_lost --help --host= --log_root= --max_steps= --one_run --outer= --outer_option= --port_base= --resume --shard --shards= --site= --standby_of= --sync= --sync_option= --target= --token_file= --transport= --until= --upstream= --upstream_token_file= --wire= --worker_num=' ;;
            simulate) words='--advise= --apply_seconds= --bandwidth= --batch_size= --check_period= --cluster= --data_dir= --dataset= --epochs= --examples= --figures --from= --help --heterogeneity= --jitter= --latency= --lr= --lr_decays= --lr_steps= --max_steps= --model= --model_bytes= --optimizer= --out= --outer= --outer_option= --seed= --seeds= --server_bandwidth= --shards= --shared_data --step_seconds= --sync= --sync_option= --target= --target_accuracy= --task= --test_images= --until= --verbose --wire= --workers=' ;;
            advise) words='changing equal-8 federated four-sites h1 h1-8 h2 h2-8 h3 h3-8 mild mixed-8 one-slow pair stable straggler three three-sites two-sites wan --advise= --apply_seconds= --bandwidth= --batch_size= --check_period= --cluster= --data_dir= --dataset= --epochs= --examples= --figures --from= --help --heterogeneity= --jitter= --latency= --lr= --lr_decays= --lr_steps= --max_steps= --model= --model_bytes= --optimizer= --out= --outer= --outer_option= --seed= --seeds= --server_bandwidth= --shards= --shared_data --step_seconds= --sync= --sync_option= --target= --target_accuracy= --task= --test_images= --until= --verbose --wire= --workers=' ;;
            watch) words='--help --http= --out= --trace=' ;;
            figures) words='--help --out= --target= --window=' ;;
            export) words='--best --help' ;;
            ray) words='--help --max_restarts= --name= --placement_timeout= --ps= --resources= --standby --storage= --strategy= --sync= --workers=' ;;
            models) words='bsp asp ssp wbsp pcc dssp adsp lbbsp nbsync elasticbsp saps esync localsgd fedasync ksync rennala ringmaster msync decoupled auto --help' ;;
            *) words='run ps simulate advise watch figures export ray models' ;;
        esac
    fi
    COMPREPLY=($(compgen -P "$kept" -W "$words" -- "$word"))
}
complete -o default -o nospace -F _wbsp wbsp
