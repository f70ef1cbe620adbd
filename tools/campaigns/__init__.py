"""The fault campaigns: what each does to the engine, what must hold afterwards, and what shows that its check works.

    catalogue    all campaigns by name; each other module or package here is one of them
    frame/       what every campaign is, how it is performed, broken on purpose and told
    processes/   processes that are started, stopped, killed and waited for
    storage/     storage that fails, and programs that run on it and are audited
    effects/     effects that are counted: receivers, promises, and what a crash may leave

`python tools/faults.py` performs them. Begin with `frame/campaign.py`.
"""
