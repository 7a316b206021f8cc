"""The performance model of a training job: how fast it steps, how much each step is worth, and its best batch size.

Pure functions over numpy arrays; knows nothing of jobs, policies or the simulator. The equations are those of Pollux
(Qiao et al., OSDI '21): goodput = throughput x efficiency.
"""
