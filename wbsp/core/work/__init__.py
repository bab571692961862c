"""The run's shared data: parts of their ledger (`wbsp.core.work_ledger`), and a worker's ranges."""
