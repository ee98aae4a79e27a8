"""Small tools that every other package uses; nothing here knows of layers or networks."""
