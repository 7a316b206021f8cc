"""A small valid file of every format, and a place to write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

GAVEL = "ResNet-18 (batch size 128)\tpython3 main.py\tcifar10\t--num_steps\t1\t9000\t4\t2\t-1.000000\t0\n"
SHOCKWAVE = "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t500\t2\tgns\t1\t1.5\t100\t7\n"
PHILLY_JOB = {
    "status": "Pass",
    "vc": "vc1",
    "jobid": "application_1",
    "attempts": [
        {
            "start_time": "2017-10-07 01:00:10",
            "end_time": "2017-10-07 01:01:10",
            "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
        },
        {"start_time": "2017-10-07 02:00:00", "end_time": "2017-10-07 02:00:30", "detail": []},
    ],
    "submitted_time": "2017-10-07 01:00:00",
    "user": "ce2f4c",
}

#: One or two jobs each. For the formats of several files, the first one.
SAMPLES: dict[str, str] = {
    "fairlead": '{"fairlead_trace": 1, "origin": null}\n{"job": {"id": "a", "submit_s": 0, "gpus": 4, "steps": 9}}\n',
    "muri": (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\r\n"
        "0,1,0,5853661,dqn,128,2868294000,46122000,490,446,8,0.5,1\r\n"
        "1,8,201694000,8787693,vgg16,16,4472936500,201694000,509,435,8,0,0\r\n"
    ),
    "chronus": (
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,"
        "expect_value_list,best_effort,job_type\n"
        "0,vc_a,1,8555,5049,vgg16,747,14,1105-2210,10-5,0,strict\n"
        "2,vc_b,2,341,3621,alexnet,30,17,341,10,1,best\n"
        "3,vc_b,0,341,3621,alexnet,30,17,341,10,1,best\n"
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "0,1,0,606,vgg19,164,30\n1,8,30,133,vgg11,147,23\n"
    ),
    "philly": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:01:55,2951.0,8,23608.0,6214e9\n\n"
    ),
    "philly-json": json.dumps([PHILLY_JOB]),
    "pollux": ("name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\nncf-1,135,ncf,1,32768\n"),
    "gavel": GAVEL + GAVEL.replace("128)", "32)").replace("\t0\n", "\t55\n"),
    "shockwave": SHOCKWAVE,
    "acme": (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
        "dlc1,uf794,8,64,960,Pretrain,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:01:16+00:00,18,10.0,1152.0\n"
        "dlc2,uf794,1,0,12,Other,COMPLETED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:01:16+00:00,18,10.0,0\n"
    ),
    "helios": (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "12,uV,vchbv,4,16,1,TIMEOUT,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
        "11,uX,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
        "13,uX,vcJkd,0,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
        "14,uX,vcJkd,1,1,1,CANCELLED,2020-06-09 18:41:01,,,,\n"
    ),
    "alibaba-2020": "job1,inst1,userA,Terminated,1000.0,1500.0\njob2,inst2,userB,Failed,900.0,950.0\n",
    "alibaba-2023": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
        "scheduled_time\n"
        "pod-1,88000,327680,8,1000,,Burstable,Succeeded,9437497,9439497,9437500\n"
        "pod-2,4000,15258,1,220,V100M16|V100M32,BE,Running,9437490,9437500,9437490\n"
        "pod-3,4000,15258,0,0,,BE,Running,9437490,9437500,9437490\n"
        "pod-4,4000,15258,1,1000,,LS,Pending,9437490,9437500,\n"
    ),
    "swf": (
        "; Computer: test\n; UnixStartTime: 1000000000\n"
        "1 10 5 100 8 -1 -1 16 3600 -1 1 3 1 4 2 1 -1 -1\n"
        "2 20 5 -1 8 -1 -1 16 3600 -1 5 3 1 4 2 1 -1 -1\n"
    ),
}

ALIBABA_TASKS = (
    "job1,worker,3.0,Terminated,1010.0,1400.0,600.0,29.3,50.0,V100\n"
    "job1,ps,1.0,Terminated,1005.0,1400.0,600.0,29.3,,\n"
    "job2,worker,1.0,Failed,905.0,950.0,600.0,29.3,,\n"
)
ALIBABA_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,262144,0,\nn2,128000,786432,8,G3\nn3,96000,786432,2,T4\n"

FILE_NAMES = {"alibaba-2020": "pai_job_table.csv", "alibaba-2023": "openb_pod_list_default.csv"}
BESIDE = {
    "alibaba-2020": ("pai_task_table.csv", ALIBABA_TASKS),
    "alibaba-2023": ("openb_node_list_gpu_node.csv", ALIBABA_NODES),
}

Put = Callable[..., Path]


def put_sample(directory: Path, format: str, data: str | bytes | None = None) -> Path:
    """Write a format's sample, or other content under its name, with the files it needs beside it."""
    content = SAMPLES[format] if data is None else data
    if format in BESIDE:
        name, text = BESIDE[format]
        (directory / name).write_text(text)
    path = directory / FILE_NAMES.get(format, "trace.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def put(tmp_path: Path) -> Put:
    return lambda format, data=None: put_sample(tmp_path, format, data)


@pytest.fixture(scope="session")
def samples() -> dict[str, str]:
    return SAMPLES


@pytest.fixture(scope="module")
def put_again(tmp_path_factory: pytest.TempPathFactory) -> Put:
    """Like `put`, into one directory for the whole module, for tests that write hundreds of files."""
    directory = tmp_path_factory.mktemp("samples")
    return lambda format, data=None: put_sample(directory, format, data)
