"""Statistics of vLLM's scheduler, as vLLM reports them."""

from types import SimpleNamespace

from strop.inference.vllm.statistics import StatisticsRecorder
from strop.types import EngineStatistics


def test_the_scheduler_s_steps_are_added_up_until_they_are_taken():
    clock = iter([0.0, 1.0, 3.0, 3.5])
    recorder = StatisticsRecorder(lambda: next(clock))
    for running, waiting, usage, preempted in ((4, 9, 0.2, 0), (8, 1, 0.7, 2)):
        prefix = SimpleNamespace(queries=32, hits=16)
        scheduler = SimpleNamespace(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=usage,
            prefix_cache_stats=prefix,
        )
        iteration = SimpleNamespace(
            num_preempted_reqs=preempted, num_prompt_tokens=10, num_generation_tokens=4
        )
        recorder.record(scheduler, iteration, mm_cache_stats=None)
    recorder.record(None, None)
    assert recorder.take() == EngineStatistics(8, 9, 0.7, 64, 32, 2, sampled_tokens=8, busy_seconds=2.5)
    assert recorder.processed_tokens == 28
    assert recorder.take() == EngineStatistics(0, 0, 0.0, 0, 0, 0)
