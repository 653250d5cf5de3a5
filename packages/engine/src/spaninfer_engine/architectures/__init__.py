"""One TOML file per architecture; docs/spec-language.md explains them. Data only."""
