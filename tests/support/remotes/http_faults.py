"""mitmproxy addon: carries out the faults of `faults.py` between an HTTP client and its remote.

Loaded by mitmdump with the repository's root on its path and the shared folder in FAULT_FOLDER.
"""

import asyncio
import os
from http.client import HTTPConnection
from pathlib import Path

from mitmproxy import http  # lives in the servers' environment

from tests.support.remotes.faults import Exchange, Fault, FaultPlan, Mode

_UNSENT: tuple[Mode, ...] = ("drop_request", "hang_request", "502_unsent", "late")


def _what(request: http.Request) -> str:
    return " ".join([request.method, request.path, request.headers.get("x-amz-target", "")]).strip()


def _bad_gateway() -> http.Response:
    return http.Response.make(502, b"bad gateway")


class HttpFaults:
    """One fault per exchange, taken when the request arrives, carried out before or after it."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan
        self._late: set[asyncio.Task[None]] = set()

    async def request(self, flow: http.HTTPFlow) -> None:
        """Carries out the faults that keep the request from the remote.

        Args:
            flow: the exchange.
        """
        what = _what(flow.request)
        fault = self._plan.take(what)
        flow.metadata["fault"] = fault
        if fault.mode not in _UNSENT:
            return
        self._plan.note(Exchange(what, fault.mode, acted=False))
        if fault.mode == "late":
            task = asyncio.create_task(self._send_late(flow.request.copy(), fault))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        await self._keep_from_remote(flow, fault)

    async def response(self, flow: http.HTTPFlow) -> None:
        """Carries out the faults that strike after the remote has answered, and so has acted.

        Args:
            flow: the exchange.
        """
        fault: Fault = flow.metadata["fault"]
        if fault.mode in _UNSENT:  # mitmproxy also reports the 502 that we made ourselves
            return
        status = flow.response.status_code
        self._plan.note(Exchange(_what(flow.request), fault.mode, acted=True, status=status))
        if fault.mode == "502":
            flow.response = _bad_gateway()
        elif fault.mode == "hang":
            await self._hold(fault)
        if fault.mode in ("hang", "drop_response"):
            flow.kill()

    async def _keep_from_remote(self, flow: http.HTTPFlow, fault: Fault) -> None:
        if fault.mode == "502_unsent":
            flow.response = _bad_gateway()
            return
        if fault.mode != "drop_request":
            await self._hold(fault)
        flow.kill()

    async def _hold(self, fault: Fault) -> None:
        for seconds in self._plan.pauses(fault):
            await asyncio.sleep(seconds)

    async def _send_late(self, request: http.Request, fault: Fault) -> None:
        await self._hold(fault)
        status = await asyncio.to_thread(_send, request)
        self._plan.note(Exchange(_what(request), "late", acted=True, status=status))


def _send(request: http.Request) -> int:
    connection = HTTPConnection(request.host, request.port, timeout=30)
    connection.request(
        request.method, request.path, request.raw_content, dict(request.headers.items())
    )
    return connection.getresponse().status


addons = [HttpFaults(FaultPlan(Path(os.environ["FAULT_FOLDER"])))]
