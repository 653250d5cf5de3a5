"""Parts that backends on numpy and plain torch share."""
