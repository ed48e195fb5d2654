"""Export of a pipeline's rows to a file or a table of a database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.errors import DataError, MissingExtraError
from strop.workers.files import atomic_path

if TYPE_CHECKING:
    import datasets


def export_rows(data: Path, target: str, table: str | None) -> None:
    """Write the rows to a file or a table, which is replaced. Raises DataError where that is not possible."""
    import datasets

    datasets.disable_progress_bars()
    dataset = datasets.load_from_disk(str(data))
    if table is not None:
        _to_table(dataset, target, table)
        return
    path = Path(target).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            if path.suffix == ".parquet":
                dataset.to_parquet(str(temporary))
            else:
                dataset.to_json(str(temporary), force_ascii=False)
    except OSError as error:
        raise DataError(
            f"data.pipeline.export: {path} cannot be written: {error.strerror or error}."
        ) from None


def _to_table(dataset: datasets.Dataset, url: str, table: str) -> None:
    """Write the rows to a table in one transaction; values that no column of a database can hold become JSON."""
    try:
        import sqlalchemy as sa
    except ImportError:
        raise MissingExtraError(
            f"data.pipeline.export: {redact_text(url)} is written with SQLAlchemy: pip install 'strop[sql]'"
        ) from None
    kinds = {name: _sql_type(feature) for name, feature in dataset.features.items()}
    metadata = sa.MetaData()
    key = sa.Column("strop_row", sa.Integer, primary_key=True)
    target = sa.Table(table, metadata, key, *(sa.Column(name, kind) for name, kind in kinds.items()))
    engine = sa.create_engine(url)
    try:
        if engine.dialect.name == "sqlite" and engine.url.database:
            Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        with engine.begin() as connection:
            metadata.drop_all(connection)
            metadata.create_all(connection)
            for first in range(0, len(dataset), 1000):
                rows = dataset.select(range(first, min(first + 1000, len(dataset)))).to_list()
                connection.execute(
                    sa.insert(target), [{"strop_row": first + n, **row} for n, row in enumerate(rows)]
                )
    except (sa.exc.SQLAlchemyError, OSError) as error:
        reason = redact_text(str(error).splitlines()[0])
        raise DataError(f"data.pipeline.export: {redact_text(url)} cannot be written: {reason}.") from None
    finally:
        engine.dispose()


def _sql_type(feature: object) -> Any:
    import sqlalchemy as sa

    kind = getattr(feature, "dtype", None)
    if not isinstance(kind, str) or kind in ("dict", "list"):
        return sa.JSON()
    if "int" in kind:
        return sa.BigInteger()
    if "float" in kind:
        return sa.Float()
    return {"bool": sa.Boolean(), "binary": sa.LargeBinary()}.get(kind, sa.Text())
