"""How a head that was read becomes the ASGI request that uvicorn would have made of it."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.exchange import HeaderList


def replay(connection: HttpToolsProtocol, target: bytes, headers: HeaderList) -> None:
    """Make a complete head the ASGI request that uvicorn would have made of it."""
    HttpToolsProtocol.on_message_begin(connection)
    connection.url = target
    for name, value in headers:
        HttpToolsProtocol.on_header(connection, name, value)
    connection.cycle = None  # type: ignore[assignment] # the order of answers is not uvicorn's to keep
    HttpToolsProtocol.on_headers_complete(connection)
