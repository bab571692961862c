"""Parts of the ledger of the run's shared data: see `wbsp.core.work_ledger`."""
