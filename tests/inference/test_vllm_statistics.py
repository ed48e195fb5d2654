"""Statistics of vLLM's scheduler, as vLLM reports them."""

from types import SimpleNamespace

from strop.inference.vllm.statistics import StatisticsRecorder
from strop.types import EngineStatistics


def test_the_scheduler_s_steps_are_added_up_until_they_are_taken():
    recorder = StatisticsRecorder()
    for running, waiting, usage, preempted in ((4, 9, 0.2, 0), (8, 1, 0.7, 2)):
        prefix = SimpleNamespace(queries=32, hits=16)
        scheduler = SimpleNamespace(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=usage,
            prefix_cache_stats=prefix,
        )
        recorder.record(scheduler, SimpleNamespace(num_preempted_reqs=preempted), mm_cache_stats=None)
    recorder.record(None, None)
    assert recorder.take() == EngineStatistics(8, 9, 0.7, 64, 32, 2)
    assert recorder.take() == EngineStatistics(0, 0, 0.0, 0, 0, 0)
