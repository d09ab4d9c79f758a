"""A transfer request either moves money, is refused, or certainly moves nothing."""
