"""The types of the decorators: what goes in, what callers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from langgraph_idem.effects import Effect

P = ParamSpec("P")
R = TypeVar("R")


ASession = TypeVar("ASession", bound="Session")
AnAsyncSession = TypeVar("AnAsyncSession", bound="AsyncSession")
"""A sessionmaker may give sessions of the user's own class."""


class TransactionalDecorator(Protocol):
    """Hides the session or connection of a function, in either colour."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AnAsyncSession, P], Awaitable[R]], /
    ) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncConnection, P], Awaitable[R]], /
    ) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[ASession, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Connection, P], R], /) -> Callable[P, R]: ...


class RemoteDecorator(Protocol):
    """Hides the effect of a function, in either colour."""

    def __call__(self, function: Callable[Concatenate[Effect, P], R], /) -> Callable[P, R]:
        """Guard the function."""
        ...
