"""Corrections of Dynamo's traces where these differ from what Python does; active only while Lamina compiles."""
