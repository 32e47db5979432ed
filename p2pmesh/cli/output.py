"""How events and answers look: one JSON object a line for programs, sentences for people.

Values from outside (names of peers, models) are shown with their control characters escaped, so that no peer can
write to the operator's terminal.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

from p2pmesh.app.events import Event, EventName
from p2pmesh.base.quantities import format_age, format_size
from p2pmesh.cli.progress import FetchLine, describe_fetch

_SHORT_ID_CHARACTERS = 12


class EventPrinter(Protocol):
    """Where a running node's events go."""

    def emit(self, event: Event) -> None:
        """Prints one event and flushes; never raises for a reader that is gone."""


class JsonPrinter:
    """One object a line on ``out``."""

    def __init__(self, out: TextIO) -> None:
        self._out = _Lines(out)

    def emit(self, event: Event) -> None:
        """See ``EventPrinter``."""
        self._out.write(encode_event(event))


class PrettyPrinter:
    """Sentences on ``out``; errors on ``err``."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = _Lines(out)
        self._err = _Lines(err)
        self._columns = shutil.get_terminal_size((0, 0)).columns if out.isatty() else 0
        self._fetch = FetchLine(out)

    def emit(self, event: Event) -> None:
        """See ``EventPrinter``."""
        if event.name is EventName.MODEL_FETCHING:
            self._fetch.show(event.fields, printable(describe_fetch(event.fields)))
            return
        self._fetch.end()
        lines = self._err if event.name is EventName.ERROR else self._out
        for line in describe_event(event):
            lines.write(line)
        if event.name is EventName.INVITE and self._columns:
            self._write_code(str(event.fields["invite"]))

    def _write_code(self, text: str) -> None:
        """Where it fits: a phone carries the invite to the other machine."""
        from p2pmesh.cli.qr import fits, qr_lines

        lines = qr_lines(text)
        for line in lines if fits(lines, self._columns) else ():
            self._out.write(line)


class _Lines:
    """Whole lines to a stream until its reader is gone; a node does not end because its log has no reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_open = True

    def write(self, line: str) -> None:
        if not self._is_open:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):  # ValueError: the stream was closed
            self._is_open = False
        except OSError:  # a full disk under a log, a terminal that went: this line is lost, the next may be written
            return


def encode_event(event: Event) -> str:
    """An event as JSON on one line, ASCII only."""
    return json.dumps({"event": event.name.value, **event.fields}, separators=(",", ":"))


def describe_event(event: Event) -> Iterator[str]:
    """An event in sentences."""
    describe = _SENTENCES.get(event.name, _describe_plainly)
    for line in describe(event):
        yield printable(line)


def printable(text: str) -> str:
    """``text`` with all but printable characters escaped, on one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def _describe_plainly(event: Event) -> Iterator[str]:
    facts = ", ".join(f"{name} {_plain(value)}" for name, value in event.fields.items())
    words = event.name.value.replace("_", " ")
    yield f"{words}: {facts}" if facts else words


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _describe_listening(event: Event) -> Iterator[str]:
    yield f"API      {event.fields['api_url']}/v1  (answers 503 until a model is ready)"
    yield f"console  {event.fields['console_url']}/api/status  (token in run.json of the home)"
    yield f"peer id  {event.fields['peer_id']}"


_LEFT_OUT = {
    "down": "is down",
    "inner": "leads to containers and virtual machines of this machine alone",
    "unsettled": "is being checked or given up by the system",
}
"""What an operator might wonder about; that loopback and link-local addresses lead nowhere goes without saying."""


def _describe_addresses(event: Event) -> Iterator[str]:
    told = event.fields["announced"]
    yield f"peers    {', '.join(told)}" if told else "peers    no address that others could dial; see --announce"
    for one in event.fields["left_out"]:
        if one["reason"] in _LEFT_OUT:
            yield f"  not {one['address']}: {one['interface']} {_LEFT_OUT[one['reason']]}"


def _describe_lan_met(event: Event) -> Iterator[str]:
    yield f"found peer {_short(event.fields['peer_id'])} of this mesh on the local network"


def _describe_lan_missed(event: Event) -> Iterator[str]:
    peer = _short(event.fields["peer_id"])
    yield f"peer {peer} of the local network was not joined, it is tried again: {event.fields['message']}"


_REACH = {
    "public": "others can dial this node",
    "private": "others cannot dial this node",
    "unknown": "whether others can dial this node is not known yet",
}
_NAT = {"none": "no NAT", "cone": "a NAT that keeps ports", "symmetric": "a symmetric NAT", "unknown": ""}


def _describe_reach(event: Event) -> Iterator[str]:
    facts = [_REACH[event.fields["reachability"]], _NAT[event.fields["nat"]]]
    facts.append("relays are asked" if event.fields["needs_relay"] else "")
    yield f"reach    {'; '.join(fact for fact in facts if fact)}"


def _describe_relays(event: Event) -> Iterator[str]:
    relays = [_short(relay) for relay in event.fields["relays"]]
    yield f"relays   {', '.join(relays)}" if relays else "relays   none: only peers that this node dials are met"


def _describe_upgrade(event: Event) -> Iterator[str]:
    peer, after_s = _short(event.fields["peer_id"]), event.fields["after_ms"] / 1000
    yield f"peer {peer} is reached directly now, after {after_s:.1f} s through a relay"


def _describe_invite(event: Event) -> Iterator[str]:
    yield "another machine joins with:"
    yield f"  p2pmesh up --join {event.fields['invite']}"


def _describe_pipeline(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} runs as {_count(len(event.fields['stages']), 'stage')}"
    for stage in event.fields["stages"]:
        yield f"  {_layers(stage)} on {_short(stage['peer_id'])}"


def _describe_placement(event: Event) -> Iterator[str]:
    stages = event.fields["stages"]
    yield f"{event.fields['model']} is placed on {_count(len(stages), 'peer')}"
    for stage in stages:
        needed, free = format_size(stage["needed_bytes"]), format_size(stage["free_bytes"])
        yield f"  {_layers(stage)} on {_short(stage['peer_id'])}: needs {needed} of {free}"


def _describe_waiting(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} waits for peers: {event.fields['message']}"


def _describe_stage_loading(event: Event) -> Iterator[str]:
    yield f"loading {_stage(event)}: {format_size(event.fields['bytes'])} from {event.fields['source']}"


def _describe_stage_fetched(event: Event) -> Iterator[str]:
    fields = event.fields
    resumed = f", {format_size(fields['resumed_bytes'])} were here already" if fields["resumed_bytes"] else ""
    came = f"{format_size(fields['fetched_bytes'])} from {_count(len(fields['sources']), 'peer')}"
    yield f"{_stage(event)} is here: {came}{resumed}"


_LEFT = {"wrong": "sent wrong bytes", "slow": "is too slow", "lost": "is gone", "unknown": "does not give it"}


def _describe_source_dropped(event: Event) -> Iterator[str]:
    cause = event.fields["cause"]
    yield f"the file {event.fields['digest'][:12]} is taken from others: peer {_short(event.fields['peer_id'])} " + (
        _LEFT.get(cause, cause)
    )


def _describe_stage_ready(event: Event) -> Iterator[str]:
    width = event.fields["exact_width"]
    yield f"{_stage(event)} is ready here, for {_count(width, 'row')} a step"
    for note in event.fields["notes"]:
        yield f"  {note}"


def _describe_stage_failed(event: Event) -> Iterator[str]:
    yield f"{_stage(event)} failed here: {event.fields['message']}"


def _stage(event: Event) -> str:
    return f"stage {event.fields['stage']} of {event.fields['model']}, {_layers(event.fields)}"


def _layers(fields: Mapping[str, Any]) -> str:
    """The last one included, as people count."""
    start, end = fields["layers"]
    return f"layer {start}" if end - start == 1 else f"layers {start} to {end - 1}"


def _describe_withdrawn(event: Event) -> Iterator[str]:
    stage = event.fields["stage"]
    where = "" if stage is None else f" at stage {stage}"
    yield f"{event.fields['model']} serves no longer{where}: {event.fields['message']}"


_LOAD_REASONS = {
    "no_server": "it is asked for and nobody serves it",
    "imbalance": "its servers have three times the requests of others",
    "busy": "its servers have ten requests a minute each",
}


def _describe_replica_fetching(event: Event) -> Iterator[str]:
    reason, size = str(event.fields["reason"]), format_size(event.fields["bytes"])
    why = _LOAD_REASONS.get(reason, reason)
    yield f"{event.fields['model']} ({size}) is fetched from peer {event.fields['source']} and others: {why}"


def _describe_replica_fetched(event: Event) -> Iterator[str]:
    size, count = format_size(event.fields["fetched_bytes"]), len(event.fields["sources"])
    yield f"the file of {event.fields['model']} is here; {size} came from {count} peer{'s' * (count != 1)}"


def _describe_load_on_demand(event: Event) -> Iterator[str]:
    reason = str(event.fields["reason"])
    size = format_size(event.fields["needed_bytes"])
    yield f"{event.fields['model']} is loaded ({size}): {_LOAD_REASONS.get(reason, reason)}"


def _describe_unloaded(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} is unloaded: {event.fields['message']}"


def _describe_handed_over(event: Event) -> Iterator[str]:
    what = f"{_layers(event.fields)} of {event.fields['model']}"
    yield f"{what} went to another peer: {event.fields['message']}"


def _describe_postponed(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} should be unloaded ({event.fields['reason']}), but {event.fields['message']}"


def _describe_aliased(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} is the same file as {event.fields['served_as']}: both names are served by one run"


def _describe_direct_return(event: Event) -> Iterator[str]:
    driver = _short(event.fields["driver"])
    yield f"tokens go to peer {driver} through the stages, not straight: {event.fields['message']}"


def _describe_widened(event: Event) -> Iterator[str]:
    yield f"a value of {event.fields['model']} does not fit the wire dtype: such frames travel as f32"


def _describe_compared(event: Event) -> Iterator[str]:
    predicted_ms, measured_ms = (event.fields[name] / 1000 for name in ("predicted_tpot_us", "measured_tpot_us"))
    yield (
        f"a token of {event.fields['model']} takes {measured_ms:.1f} ms; predicted were {predicted_ms:.1f} ms "
        f"({event.fields['error_percent']:+.0f} %)"
    )


def _describe_taken_over(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} goes on: this node coordinates it instead of peer {_short(event.fields['from'])}"


def _describe_replanned(event: Event) -> Iterator[str]:
    fields = event.fields
    before, after = fields["old_tpot_us"] / 1000, fields["new_tpot_us"] / 1000
    peers = _count(len(fields["stages"]), "peer")
    yield f"{fields['model']} moves to a better placement on {peers}: {before:.1f} ms a token before, {after:.1f} after"


def _describe_usage(event: Event) -> Iterator[str]:
    fields = event.fields
    minutes = round(fields["window_s"] / 60)
    given = f"{format_size(fields['given_bytes'])} in {_count(fields['given_layers'], 'layer')}"
    yield (
        f"last {minutes} minutes: {_count(fields['tokens'], 'token')} for {_count(len(fields['users']), 'user')}, "
        f"sent {format_size(fields['sent_bytes'])}, got {format_size(fields['received_bytes'])}; "
        f"given now: {given}; up {format_age(1000 * fields['uptime_s'])}, {fields['tokens_in_all']} tokens in all"
    )
    for user in fields["users"]:
        who = user["name"] or f"peer {_short(user['peer_id'])}"
        yield f"  {who}: {_count(user['tokens'], 'token')} of {user['model']}"


_REST = {"hours": "it is outside the hours of --share-hours", "owner": "the machine is in use"}


def _describe_sharing(event: Event) -> Iterator[str]:
    fields = event.fields
    then = f"; the hours change {fields['next_change']}" if fields["next_change"] else ""
    why = _REST.get(fields["reason"], str(fields["reason"]))
    match fields["state"]:
        case "giving":
            yield f"this machine shares {format_size(fields['offered_bytes'])}{then}"
        case "leaving":
            yield f"{why}: nothing new is taken, and what runs here has {fields['leave_s']} s to end or move"
        case _:
            yield f"{why}: nothing is shared now{then}"


def describe_reload(fields: Mapping[str, Any]) -> Iterator[str]:
    """What became of a file that was read again."""
    applied, restart = ", ".join(fields["applied"]), ", ".join(fields["needs_restart"])
    if applied:
        yield f"{fields['path']}: {applied} took effect"
    if restart:
        yield f"{fields['path']}: {restart} takes effect at the next start"
    if not applied and not restart:
        yield f"{fields['path']}: nothing has changed"


def _describe_message(event: Event) -> Iterator[str]:
    yield str(event.fields["message"])


def _describe_not_routable(event: Event) -> Iterator[str]:
    yield f"no longer routable from here: {_models(event)}"


def _models(event: Event) -> str:
    """The names that an event lists, and how many it leaves out."""
    models = event.fields["models"]
    more = event.fields.get("count", len(models)) - len(models)
    return ", ".join(models) + (f" and {more} more" if more else "")


def _describe_folded(event: Event) -> Iterator[str]:
    peer = event.fields["peer_id"]
    about = f"about peer {_short(peer)}" if peer else "about other peers"
    words = event.fields["folded"].replace("_", " ")
    yield f"{event.fields['count']} more times `{words}` {about} within {event.fields['window_s']} s"


def _describe_ready(event: Event) -> Iterator[str]:
    models, api_url = event.fields["models"], event.fields["api_url"]
    yield f"ready: {_models(event)} at {api_url}/v1"
    if not models:
        return
    body = json.dumps({"model": models[0], "messages": [{"role": "user", "content": "Say hello."}]})
    yield "try:"
    yield f"  curl {api_url}/v1/chat/completions -H 'content-type: application/json' -d {_shell_quoted(body)}"


def _shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _describe_fetched(event: Event) -> Iterator[str]:
    yield f"{event.fields['model']} is here: {event.fields['source']}"


def _describe_fetching(event: Event) -> Iterator[str]:
    yield f"fetching {describe_fetch(event.fields)}"


def _describe_banned(event: Event) -> Iterator[str]:
    peer = event.fields["peer_id"]
    yield f"peer {peer} is banned for {_sentence_of(event)}; `p2pmesh peer forgive {peer}` lifts it"


def _describe_throttled(event: Event) -> Iterator[str]:
    yield f"peer {event.fields['peer_id']} is served slowly for {_sentence_of(event)}"


def _describe_unbanned(event: Event) -> Iterator[str]:
    yield f"peer {event.fields['peer_id']} is banned no longer"


def _sentence_of(event: Event) -> str:
    """How long, and for what."""
    minutes = max(1, round(event.fields["seconds"] / 60))
    return f"{_count(minutes, 'minute')}: {event.fields['offence'].replace('_', ' ')}"


def _describe_error(event: Event) -> Iterator[str]:
    yield f"p2pmesh: {event.fields['message']}"


def _describe_stopping(event: Event) -> Iterator[str]:
    yield "stopping: requests that run may end; press Ctrl-C again to cut them off"


def _describe_joined(event: Event) -> Iterator[str]:
    yield f"peer joined: {_named(event)}"


def _describe_lines(event: Event) -> Iterator[str]:
    yield from map(str, event.fields["lines"])


def _describe_searched(event: Event) -> Iterator[str]:
    fields = event.fields
    took = f"{fields['took_ms'] / 1000:.1f} s"
    if not fields["has_answer"]:
        advice = "check the connection to the internet, or name other relays with --nostr-relay"
        yield f"no relay answered within {took} ({fields['detail']}); {advice}"
    else:
        yield f"{_count(fields['listed'], 'pool')} listed, {fields['reached']} of them can be joined ({took})"


def _describe_pool_joined(event: Event) -> Iterator[str]:
    fields = event.fields
    name = f"the pool {fields['name']}" if fields["name"] else "a public pool"
    yield f"joined {name} of {_count(fields['nodes'], 'node')}, {fields['rtt_us'] / 1000:.0f} ms away"


def _describe_pool_listed(event: Event) -> Iterator[str]:
    name = f"the pool {event.fields['name']}" if event.fields["name"] else "the pool"
    yield f"{name} is listed at {_count(event.fields['relays'], 'relay')}: others find it with p2pmesh up --auto"


def _describe_pool_unlisted(event: Event) -> Iterator[str]:
    yield f"the pool is not listed by this node: {event.fields['message']}"


def _describe_pool_watched(event: Event) -> Iterator[str]:
    yield f"peer {_short(event.fields['peer_id'])} lists the pool; this node takes over when it is gone"


def describe_unusable(path: str, why: str) -> str:
    """A file among the models that is none."""
    return f"{path} is not served: {why}"


def _describe_rejected(event: Event) -> Iterator[str]:
    fields = event.fields
    others = f" (and {fields['count'] - 1} like it)" if fields["count"] > 1 else ""
    yield f"a listing is left out, {fields['reason'].replace('_', ' ')}: {fields['detail']}{others}"


def _describe_refused(event: Event) -> Iterator[str]:
    count = event.fields.get("count", 1)
    times = f" ({count} times)" if count > 1 else ""
    yield f"peer {event.fields['peer_id']} is not let in{times}: {event.fields['message']}"


def _describe_put_out(event: Event) -> Iterator[str]:
    by = f", says peer {_short(event.fields['peer_id'])}" if "peer_id" in event.fields else ""
    again = _retried(event)
    yield f"this node is put out of the mesh{by}: {event.fields['message']}; it asks again {again}"


def _describe_join_failed(event: Event) -> Iterator[str]:
    yield f"no peer could be joined: {event.fields['message']}; another try follows {_retried(event)}"


def _retried(event: Event) -> str:
    retry_s = event.fields["retry_s"]
    return f"in {retry_s:.0f} s" if retry_s < 120 else f"in {_count(round(retry_s / 60), 'minute')}"


def _describe_suspected(event: Event) -> Iterator[str]:
    yield f"no word from {_named(event)}: asking it, and others about it"


def _describe_recovered(event: Event) -> Iterator[str]:
    yield f"{_named(event)} is there after all"


def _describe_failed(event: Event) -> Iterator[str]:
    yield f"{_named(event)} is gone: neither it nor anyone asked about it answers"


def _describe_left(event: Event) -> Iterator[str]:
    yield f"{_named(event)} has left"


def _describe_muted(event: Event) -> Iterator[str]:
    yield f"{_named(event)} called a peer dead that answers us; its reports are ignored for ten minutes"


def _describe_asymmetric(event: Event) -> Iterator[str]:
    peer, by, witness = (_short(event.fields[name]) for name in ("peer_id", "unreached_by", "witness"))
    yield f"peer {by} does not reach peer {peer}, but {witness} does: look for a firewall or NAT between the two"


def _named(event: Event) -> str:
    name = event.fields.get("name")
    short = _short(event.fields["peer_id"])
    return f"{name} (peer {short})" if name else f"peer {short}"


def _short(peer_id: str) -> str:
    return peer_id[-_SHORT_ID_CHARACTERS:]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_SENTENCES: Mapping[EventName, Callable[[Event], Iterator[str]]] = {
    EventName.LISTENING: _describe_listening,
    EventName.ADDRESSES: _describe_addresses,
    EventName.LAN_PEER_MET: _describe_lan_met,
    EventName.LAN_PEER_MISSED: _describe_lan_missed,
    EventName.REACH_CHANGED: _describe_reach,
    EventName.RELAYS_CHANGED: _describe_relays,
    EventName.PATH_UPGRADED: _describe_upgrade,
    EventName.INVITE: _describe_invite,
    EventName.PIPELINE_READY: _describe_pipeline,
    EventName.RUN_TAKEN_OVER: _describe_taken_over,
    EventName.REPLANNED: _describe_replanned,
    EventName.SHARING_CHANGED: _describe_sharing,
    EventName.USAGE: _describe_usage,
    EventName.CONFIG_RELOADED: lambda event: describe_reload(event.fields),
    EventName.READY: _describe_ready,
    EventName.REPLICA_FETCHING: _describe_replica_fetching,
    EventName.REPLICA_FETCHED: _describe_replica_fetched,
    EventName.LOAD_ON_DEMAND: _describe_load_on_demand,
    EventName.MODEL_UNLOADED: _describe_unloaded,
    EventName.STAGE_HANDED_OVER: _describe_handed_over,
    EventName.UNLOAD_POSTPONED: _describe_postponed,
    EventName.MODEL_ALIASED: _describe_aliased,
    EventName.MODEL_UNUSABLE: lambda event: iter((describe_unusable(event.fields["path"], event.fields["message"]),)),
    EventName.NOT_ROUTABLE: _describe_not_routable,
    EventName.EVENTS_FOLDED: _describe_folded,
    EventName.SERVES_NOTHING: _describe_message,
    EventName.CLAIM_RENEWED: _describe_message,
    EventName.CLAIM_EXPIRES: _describe_message,
    EventName.MODEL_FETCHING: _describe_fetching,
    EventName.MODEL_FETCHED: _describe_fetched,
    EventName.PEER_BANNED: _describe_banned,
    EventName.PEER_THROTTLED: _describe_throttled,
    EventName.PEER_UNBANNED: _describe_unbanned,
    EventName.PLACEMENT: _describe_placement,
    EventName.WAITING_FOR_PEERS: _describe_waiting,
    EventName.STAGE_LOADING: _describe_stage_loading,
    EventName.STAGE_FETCHED: _describe_stage_fetched,
    EventName.ARTIFACT_SOURCE_DROPPED: _describe_source_dropped,
    EventName.STAGE_READY: _describe_stage_ready,
    EventName.STAGE_FAILED: _describe_stage_failed,
    EventName.MODEL_WITHDRAWN: _describe_withdrawn,
    EventName.DIRECT_RETURN_FAILED: _describe_direct_return,
    EventName.WIRE_DTYPE_WIDENED: _describe_widened,
    EventName.TPOT_COMPARED: _describe_compared,
    EventName.ERROR: _describe_error,
    EventName.STOPPING: _describe_stopping,
    EventName.POOL_WARNING: _describe_lines,
    EventName.POOLS_SEARCHED: _describe_searched,
    EventName.POOL_JOINED: _describe_pool_joined,
    EventName.POOL_ALONE: _describe_message,
    EventName.POOL_LISTED: _describe_pool_listed,
    EventName.POOL_UNLISTED: _describe_pool_unlisted,
    EventName.POOL_WATCHED: _describe_pool_watched,
    EventName.LISTINGS_REJECTED: _describe_rejected,
    EventName.PEER_JOINED: _describe_joined,
    EventName.PEER_REFUSED: _describe_refused,
    EventName.PUT_OUT: _describe_put_out,
    EventName.JOIN_FAILED: _describe_join_failed,
    EventName.PEER_SUSPECTED: _describe_suspected,
    EventName.PEER_RECOVERED: _describe_recovered,
    EventName.PEER_FAILED: _describe_failed,
    EventName.PEER_LEFT: _describe_left,
    EventName.REPORTER_MUTED: _describe_muted,
    EventName.VISIBILITY_ASYMMETRIC: _describe_asymmetric,
}


def describe_value(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A JSON object as indented lines, ``name: value``, for ``status`` and ``models show``."""
    for name, item in value.items():
        label = f"{indent}{printable(name)}:"
        if isinstance(item, dict) and item:
            yield label
            yield from describe_value(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(member, dict) for member in item):
            yield label
            for number, member in enumerate(item, 1):
                yield from describe_value({f"{number}": member}, indent + "  ")
        else:
            yield f"{label} {printable(_plain(item))}"


def describe_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Objects of equal fields as a table with a heading; the last column is not padded."""
    if not rows:
        return
    heading = {name: name.replace("_", " ") for name in rows[0]}
    cells = [[printable(_plain(row[name])) for name in heading] for row in (heading, *rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heading) - 1)]
    for line in cells:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]])
