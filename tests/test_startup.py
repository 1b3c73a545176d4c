"""What is looked at before a server serves."""

import socket

import pytest

from app.domain.config import EndpointsConfig
from app.settings import Settings, SettingsError
from app.startup import check_certificate, listen


def settings(**endpoints):
    return Settings(endpoints=EndpointsConfig(**endpoints))


def test_an_address_that_is_not_to_be_had_is_named_with_the_setting():
    with listen(settings(port=0)) as listener:
        port = listener.getsockname()[1]
        assert listener.proto == socket.IPPROTO_TCP, "without it asyncio leaves Nagle's algorithm on"
        with pytest.raises(SettingsError) as caught:
            listen(settings(port=port))
    told = f"INFERENCE_SERVER_ENDPOINTS_PORT={port}: cannot listen on 127.0.0.1: Address already in use"
    assert str(caught.value) == told


def test_without_a_certificate_there_is_nothing_to_complain_of():
    check_certificate(settings())
    check_certificate(settings(ssl_certfile="", ssl_keyfile=""))


def test_a_certificate_or_key_that_is_not_there_is_named_with_its_setting(tmp_path):
    chain = tmp_path / "chain.pem"
    with pytest.raises(SettingsError, match=rf"ENDPOINTS_SSL_CERTFILE={chain}: cannot be read \(No such file"):
        check_certificate(settings(ssl_certfile=str(chain)))
    chain.write_text("")
    with pytest.raises(SettingsError, match=r"ENDPOINTS_SSL_KEYFILE=/absent: cannot be read \(No such file"):
        check_certificate(settings(ssl_certfile=str(chain), ssl_keyfile="/absent"))


def test_a_file_that_holds_no_certificate_is_named_with_its_setting(tmp_path):
    chain = tmp_path / "chain.pem"
    chain.write_text("no certificate")
    with pytest.raises(SettingsError, match=rf"ENDPOINTS_SSL_CERTFILE={chain}: no PEM certificate with its key"):
        check_certificate(settings(ssl_certfile=str(chain)))
