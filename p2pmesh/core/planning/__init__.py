"""Where the layers of a model go: a total function of exact bytes, measured speeds and links.

``request`` is what goes in, ``outcome`` what comes out, ``planner`` the decision. ``pricing`` says what a step costs,
``first_token`` what a prompt does, ``cutting`` where an order of peers is cut best, ``search`` which peers in which
order, ``refusing`` why there is none.
``upstream`` and ``upstream_topology`` reproduce the published results of Mesh LLM; nothing else uses them.
"""
