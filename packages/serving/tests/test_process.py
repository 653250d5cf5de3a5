import pytest
from spaninfer_engine import ConfigError
from spaninfer_serving import Settings, bind, serve


def test_of_two_servers_that_loaded_at_the_same_address_the_second_one_says_what_to_do(engine):
    with bind(Settings(port=0)) as first:
        settings = Settings(port=first.getsockname()[1])
        with bind(settings) as second:
            first.listen()

            with pytest.raises(ConfigError, match=r"Address already in use.*--port"):
                serve(engine, settings, pytest.fail, second)
