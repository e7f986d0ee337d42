"""Untrusted code behind walls that were tested first (docs/sandbox.md).

    pool       Sandbox: a pool of cells; the place to begin
    runs       what can be run, within which limits, and what comes back
    cell       one fork server, seen from outside;  runtime: what of this machine it sees;  probe: the attack at the start
    main       the program behind the walls;  walls, filter: of what they are made
    keeper     plays programs there;  child: runs beside each of them;  plain: values as data

Nothing is imported here: the program behind the walls imports some of these modules too, and should hold no more.
"""
