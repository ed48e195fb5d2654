"""Ledger rows of Trinity's `data_processor` and `service` sections: pipelines that prepare tasks and rollouts."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    also_inactive,
    always,
    any_inactive,
    mapped,
    no_effect,
    refused,
    unstated_defaults,
    versions,
)
from strop.compat.ledger.value_types import BOOLEAN, MAPPING, MAPPING_LIST, STRING, nullable
from strop.compat.trinity import experience_operators, juicer_service, task_operators

_TASKS, _EXPERIENCES = task_operators.TASKS, "data_processor.experience_pipeline"
_BUFFERS = "rollouts go from the explorer to the buffer of the trainer only; remove it"


def _serves_nothing(foreign: ForeignValues) -> str | None:
    written = (f"{_TASKS}.operators", f"{_TASKS}.config_path", f"{_EXPERIENCES}.operators")
    return None if any(foreign[key] for key in written) else "no pipeline has operators"


def _without_start(foreign: ForeignValues) -> str | None:
    return None if juicer_service.is_started(foreign) else f"{juicer_service.SERVICE}.auto_start is not set"


def _with_start(foreign: ForeignValues) -> str | None:
    return (
        f"{juicer_service.SERVICE}.auto_start takes precedence"
        if juicer_service.is_started(foreign)
        else None
    )


def _has_no_tasks_operators(foreign: ForeignValues) -> str | None:
    has = any(foreign[f"{_TASKS}.{name}"] for name in ("operators", "config_path"))
    return None if has else "the pipeline has no operators"


_INACTIVE = {
    f"{juicer_service.SERVICE}.auto_start": _serves_nothing,
    f"{juicer_service.SERVICE}.port": any_inactive(_serves_nothing, _without_start),
    f"{juicer_service.SERVICE}.server_url": any_inactive(_serves_nothing, _with_start),
    **dict.fromkeys(
        (f"{_TASKS}.{name}" for name in ("num_process", "inputs", "target_fields")),
        _has_no_tasks_operators,
    ),
}


def _has_no_operators(foreign: ForeignValues) -> str | None:
    return None if foreign[f"{_EXPERIENCES}.operators"] else "the pipeline has no operators"


ROWS: tuple[KeyMapping, ...] = (
    *(
        also_inactive(row, _INACTIVE[row.key]) if row.key in _INACTIVE else row
        for row in (*experience_operators.SERVICE_ROWS, *task_operators.ROWS, *experience_operators.ROWS)
    ),
    *unstated_defaults(
        *versions(
            *(
                mapped(section, None, note="each key has a row of its own", value_type=nullable(MAPPING))
                for section in ("data_processor", _TASKS, _EXPERIENCES, "service", "service.data_juicer")
            ),
            *(
                mapped(
                    f"{section}.operators", None, note="each item has rows", value_type=nullable(MAPPING_LIST)
                )
                for section in (_TASKS, _EXPERIENCES)
            ),
            no_effect(f"{_EXPERIENCES}.save_input", True, "rollouts are always recorded", value_type=BOOLEAN),
            no_effect(
                f"{_EXPERIENCES}.input_save_path",
                None,
                "rollouts are recorded in the run folder",
                value_type=nullable(STRING),
            ),
            *(
                refused(
                    f"{_EXPERIENCES}.{name}.*",
                    UNSET,
                    _BUFFERS,
                    supported=always,
                    inactive=_has_no_operators,
                )
                for name in ("inputs", "output")
            ),
            since="0.3",
        )
    ),
    *task_operators.LATER_ROWS,
)
