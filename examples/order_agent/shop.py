"""The shop's own tables. Nothing here knows of agents or ledgers."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

SKU = "SKU-1"
STOCK = 10


class Base(DeclarativeBase):
    """The shop's tables."""


class Product(Base):
    """What is for sale."""

    __tablename__ = "products"
    sku: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Notification(Base):
    """What customers were told: one row per message, so that a message sent twice shows."""

    __tablename__ = "notifications"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]


def open_shop(engine: sa.Engine) -> None:
    """Make the tables and fill the shelf, unless that was done before."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        if session.get(Product, SKU) is None:
            session.add(Product(sku=SKU, stock=STOCK))
