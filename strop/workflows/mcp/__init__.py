"""Tools of MCP servers (Model Context Protocol): the file of servers, the client, and verl's tool entries."""
