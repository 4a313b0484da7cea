"""`python tests/fuzz`: searches for inputs that cause foreign errors, hangs or excessive resource use. See `--help`."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

import click

EPILOG = """\b
Examples:
  python tests/fuzz                                    every target, 15 s each
  python tests/fuzz --seconds 120 --target masking     one target for two minutes
  python tests/fuzz --engine mutation --seed 7         without atheris, and the same again
  python tests/fuzz --list
A finding is saved in tests/fuzz/corpus/TARGET/, from where `make test` replays it. Exit code 1: there was one.
"""


@click.command(epilog=EPILOG)
@click.option("--target", "names", multiple=True, metavar="NAME", help="Only this target. Repeatable.")
@click.option("--seconds", default=15.0, show_default=True, help="Time per target.")
@click.option("--seed", type=int, help="Random seed; printed if not set.")
@click.option("--engine", type=click.Choice(["auto", "atheris", "mutation"]), default="auto", show_default=True)
@click.option("--save/--no-save", default=True, show_default=True, help="Add findings to the corpus.")
@click.option("--list", "listing", is_flag=True, help="List the targets and their past findings.")
@click.option("--child", type=click.Path(path_type=Path), hidden=True)
def main(
    names: tuple[str, ...], seconds: float, seed: int | None, engine: str, save: bool, listing: bool, child: Path | None
) -> None:
    """Feed hostile bytes to everything that reads bytes."""
    guided = _is_guided(engine)
    if child is not None and guided:
        import atheris

        with atheris.instrument_imports(include=["relay", "memory_agent", "sona"], enable_loader_override=False):
            import targets
    else:
        import targets
    unknown = set(names) - set(targets.TARGETS)
    if unknown:
        raise click.UsageError(f"there is no target {', '.join(sorted(unknown))}; --list names them")
    chosen = [target for name, target in targets.TARGETS.items() if not names or name in names]
    if child is not None:
        import hunt

        (hunt.guided_child if guided else hunt.mutation_child)(chosen[0], seconds, seed or 0, child)
    elif listing:
        for target in chosen:
            click.echo(f"{target.name:20} {len(target.samples):3} samples {len(target.corpus):3} in the corpus")
    else:
        seed = secrets.randbits(31) if seed is None else seed
        sys.exit(_hunt([target.name for target in chosen], seconds, seed, guided, save))


def _is_guided(engine: str) -> bool:
    from hunt import has_atheris

    if engine == "atheris" and not has_atheris():
        raise click.UsageError("atheris is not installed: pip install '.[fuzz]'")
    return engine == "atheris" or (engine == "auto" and has_atheris())


def _hunt(names: list[str], seconds: float, seed: int, guided: bool, save: bool) -> int:
    import hunt

    click.echo(f"{len(names)} targets, {seconds:g} s each, {'atheris' if guided else 'mutation'}, --seed {seed}")
    total = found = 0
    for place, name in enumerate(names, 1):
        started_s = time.monotonic()
        result = hunt.hunt(name, seconds, seed, guided)
        total, found = total + result.inputs, found + len(result.findings)
        took_s = time.monotonic() - started_s
        click.echo(f"[{place}/{len(names)}] {name:20} {result.inputs:9,} inputs in {took_s:5.1f} s")
        for why, data in result.findings:
            where = hunt.save(name, data).as_posix() if save else data[:60].hex()
            click.echo(f"    {why}\n    {len(data)} bytes: {where}")
    click.echo(f"{total:,} inputs, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    main()
