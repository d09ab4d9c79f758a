"""Transfers: a request either moves money, is refused, or certainly moves nothing."""
