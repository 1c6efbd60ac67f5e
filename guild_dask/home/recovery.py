"""Recover runs of dead schedulers and lost workers: stage again what never started, settle what is over.

A run counts as dead only when its process is known to be, by the rule in liveness.py.
"""

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from guild_dask.home import claims, end_note, layout, run_directory, stop_request
from guild_dask.home.claim_record import Claim
from guild_dask.home.errors import HomeUnavailable, RunUnusable, translated
from guild_dask.home.liveness import Liveness, is_silent, liveness
from guild_dask.home.outcome import Cause, End, Evidence, Result, outcome_for
from guild_dask.home.run_queue import Again, GuildHome, never, state_of
from guild_dask.home.status import living_process
from guild_dask.host import processes


@dataclass(frozen=True)
class Recovered:
    """What recover() found and did."""

    staged_again: tuple[str, ...] = ()  # runs that never started
    ended: tuple[tuple[str, Result], ...] = ()  # runs that had started; some are staged for another attempt
    orphans: tuple[Claim, ...] = ()  # of runs that go on without a scheduler, or whose worker is lost
    neighbours: tuple[Claim, ...] = ()  # with devices, of other schedulers that are alive
    stops: tuple[str, ...] = ()  # our own runs that are requested to stop
    gone: tuple[str, ...] = ()  # unseen runs that are not ours any more: deleted, or taken over by another scheduler


def recover(
    home: GuildHome, unseen: Collection[str] = (), known: Collection[str] = (), again: Again = never
) -> Recovered:
    """Settles claims of dead schedulers, and our own that this scheduler does not know to go on, if they are over.

    `known` are our runs that a worker has, or that are to be settled. Those that are `unseen`, whose worker is lost or
    which could not be settled, are not among them, nor is a run whose claim could neither be completed nor withdrawn.
    Raises HomeUnavailable if the claims cannot be read.
    """
    try:
        return _recover(home, unseen, known, again)
    except OSError as e:
        raise HomeUnavailable(f"cannot read {home.claims_folder}: {e.strerror or e}") from e


def _recover(home: GuildHome, unseen: Collection[str], known: Collection[str], again: Again) -> Recovered:
    gone = tuple(run_id for run_id in unseen if not home.is_ours(run_id))
    abandoned: list[tuple[claims.Found, Cause]] = []
    orphans, neighbours, stops = [], [], []
    for found in claims.all_claims(home.claims_folder):
        claim = found.claim
        if claim is None:
            abandoned.append((found, Cause.KILLED))
            continue
        is_ours = claim.scheduler == home.heartbeat.process  # not the id: a scheduler may be restarted under its own
        if is_ours and stop_request.is_requested(claims.path(home.claims_folder, found.run_id)):
            stops.append(found.run_id)
        if is_ours and found.run_id in known:
            continue
        if not is_ours and home.heartbeat.is_alive(claim.scheduler_id, claim.scheduler):
            if claim.lease:
                orphans.append(claim)  # it is no orphan, but it uses a worker that both schedulers may use
            elif claim.devices:
                neighbours.append(claim)
            continue
        cause = _death(home, found, claim)
        if cause:
            abandoned.append((found, cause))
            continue
        orphans.append(claim)
        _withdraw_unheard_request(home, found, claim)
    _sweep(home)
    staged_again, ended = _take_over(home, abandoned, again) if abandoned else ([], [])
    return Recovered(tuple(staged_again), tuple(ended), tuple(orphans), tuple(neighbours), tuple(stops), gone)


def _withdraw_unheard_request(home: GuildHome, found: claims.Found, claim: claims.Claim) -> None:
    """Withdraws a stop request of a scheduler that died before it sent a signal, to a run on this host."""
    beside = claims.path(home.claims_folder, found.run_id)
    if not claim.lease and stop_request.requested_cause(beside) is Cause.SCHEDULER_STOPPED:
        with contextlib.suppress(OSError):
            stop_request.withdraw(beside)


def _sweep(home: GuildHome) -> None:
    """Removes the rest of a claim whose scheduler died while it removed the claim."""
    strays = claims.strays(home.claims_folder)
    if strays:
        with home.lock():
            for run_id in strays:
                if claims.present(home.claims_folder, run_id) is None:
                    claims.remove(home.claims_folder, run_id)


def _death(home: GuildHome, found: claims.Found, claim: claims.Claim) -> Cause | None:
    """Returns what ended an attempt, or None if its process may be alive."""
    run_dir = home.run_dir(found.run_id)
    if not found.is_started and claim.owner == claim.scheduler:
        # No starter has the claim yet. One that comes late finds the claim withdrawn, and starts nothing.
        return Cause.WORKER_DIED
    lives = liveness(found, run_dir, has_ended=found.is_started and home.has_recorded_end(found))
    if lives is Liveness.UNKNOWN:
        return _silence(home, found, claim)
    if lives is Liveness.ALIVE:
        return None
    if not processes.is_of_this_boot(claim.owner):
        return Cause.NODE_LOST
    return Cause.WORKER_DIED if claim.lease else Cause.KILLED


def _silence(home: GuildHome, found: claims.Found, claim: claims.Claim) -> Cause | None:
    """Returns what ended an attempt on another host, or None if its process may be alive."""
    beside = claims.path(home.claims_folder, found.run_id)
    note = end_note.read(beside)
    if note:
        return note.cause or Cause.UNEXPLAINED
    if not claim.lease:
        if found.is_started and home.has_recorded_end(found):
            return Cause.KILLED
        # Only that host knows whether a run that started goes on. One that did not start has lost its scheduler.
        return None if found.is_started else Cause.NODE_LOST
    return Cause.NODE_LOST if is_silent(home.claims_folder, found, home.heartbeat.now()) else None


def _take_over(
    home: GuildHome, abandoned: list[tuple[claims.Found, Cause]], again: Again
) -> tuple[list[str], list[tuple[str, Result]]]:
    """Settles the abandoned runs; returns those that are staged because they never started, and how others ended."""
    staged_again: list[str] = []
    ended: list[tuple[str, Result]] = []
    with home.lock():
        # Another scheduler may have been here first, and may even have claimed a run again.
        still_there = list(claims.all_claims(home.claims_folder))
        for found, cause in abandoned:
            if found not in still_there:
                continue
            try:
                result = _settle(home, found, cause, again)
            except RunUnusable:
                continue  # this run stays as it is; the others are settled
            except HomeUnavailable:
                if staged_again or ended:
                    break  # runs that are settled have no claim any more, and must be reported; the others come later
                raise
            if result.end is End.STAGED_AGAIN:
                staged_again.append(found.run_id)
            elif result.end is not End.GONE:
                ended.append((found.run_id, result))
    return staged_again, ended


def _settle(home: GuildHome, found: claims.Found, cause: Cause, again: Again) -> Result:
    """Settles an abandoned run, and returns how it ended."""
    run_id, run_dir = found.run_id, home.run_dir(found.run_id)
    with translated("cannot close the claim on run %s", run_id):
        is_there = home.has(run_id)
        is_taken = is_there and not found.is_started and _is_taken(run_dir, found)
        evidence = Evidence(is_there, state_of(found), death=cause, is_taken=is_taken)
        outcome = outcome_for(home.with_evidence_of_start(evidence, found, again))
        is_done = home.carry_out(run_id, outcome)
        if found.claim and outcome.result.end is not End.STAGED_AGAIN:
            _remove_output(layout.run_output(home.run_dir(found.claim.scheduler_id)), run_id)
    return outcome.result if is_done else replace(outcome.result, end=End.GONE)


def _is_taken(run_dir: str, found: claims.Found) -> bool:
    """Returns whether a claimed run waits for its dead scheduler no more: it is staged, or was started since."""
    if run_directory.has(run_dir, layout.STAGED):
        return True
    # The user may have started a run by hand that was stuck as `pending`.
    before = found.claim.before if found.claim else None
    if before is None:  # its scheduler died between two steps of the claim
        return living_process(run_dir) is not None
    return run_directory.recorded_start(run_dir) != run_directory.recorded_start_for_text(before)


def _remove_output(folder: str, run_id: str) -> None:
    """Removes the file in which a dead scheduler followed the output of a run that is over."""
    with contextlib.suppress(OSError):
        os.unlink(layout.output_in(folder, run_id))
    with contextlib.suppress(OSError):  # other runs have files there
        os.rmdir(folder)
