"""Places where work runs: in this process, or on the workers of a Dask cluster."""

from notsodeep.cluster.executors import Executor, InProcess, open_executor

__all__ = ["Executor", "InProcess", "open_executor"]
