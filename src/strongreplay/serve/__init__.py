"""The HTTP service for a kept model: predictions in batches, new versions without a restart, limits, metrics.

May import: errors, protocol, data, models, storage, training. Needs the extra `serve` (FastAPI, uvicorn).
Public: app.make_app, live.LiveModel, batching.Batcher, settings.ServiceSettings.
"""
