"""Jobs made from bodies, by the service that all routes share."""
