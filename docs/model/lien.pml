// SPDX-License-Identifier: Apache-2.0
//
// One connection, one held grant, READs on it, and everything that can end
// them. The reader (R) owns the destinations and the completions; the owner
// (O) owns the source. The model owns no time: a timer is a step that may come
// whenever its cause exists, so no property can rest on a timer being slow.
//
// Three kinds of state, never mixed:
//   core   what the library on a side believes (conn, pc, tr, gr, hg ...);
//   nic    what the provider really does (rd, srv, cqe, dead), core can't see it;
//   ghost  who owns each piece of memory (own, src) and how often a callback
//          ran (ndone, nrel, nrel_src); moved only by events that the
//          application sees. P1..P5 judge by ghost and nic, not by core's word.
//
// Each step is one STEP: what the library does under one lock. README.md maps
// the properties (P1..P10) to the rules of design.md. -DSEED_... plants an
// error; -DTWO_TRANSFERS and -DWIDE choose what is searched.

// d_step is fast but hides which of its branches ran; -DSTEP=atomic shows them.
#ifndef STEP
#define STEP d_step
#endif

#define R 0
#define O 1

// Two READs (pieces 0 and 1): one plan of two, or with -DTWO_TRANSFERS two
// transfers of one each. A piece's number is its sequence: never used twice.
#define NP 2
#ifndef TWO_TRANSFERS
#define NT 1
#define T_OF(p) 0
#else
#define NT 2
#define T_OF(p) (p)
#endif

// ---- connection, per side: one enum, one table, one setter ----------------
#define CONNECTING 0 // waits for FI_CONNECTED; ended by it, a loss or a close
#define OPEN 1       // posts allowed
#define CLOSING 2    // flag set, fi_shutdown called: no posts, waits for teardown
#define CLOSED 3     // fi_close(ep), drain and fi_close(cq) are over
byte conn[2];
#define MAY_ENTER(old, new)                                                    \
    ((old == CONNECTING && (new == OPEN || new == CLOSING)) ||                 \
     (old == OPEN && new == CLOSING) || (old == CLOSING && new == CLOSED))
inline set_conn(s, new)
{
    assert(MAY_ENTER(conn[s], new)); // P10
    conn[s] = new
}

bool gone[2];   // fi_close(ep) has returned on that side
bool proved[2]; // and was a proof: class (b)
bool dom[2];    // fi_close(domain) has been tried, after the connection's end

// ---- the provider -----------------------------------------------------------
// CLASS_B: fi_close(ep) is always a proof (tcp, fi_close == 0).
// CLASS_V: asked each time, yes or unknown (verbs and its queue pair).
// CLASS_A: only own completions count (shm, or verbs with netlink hidden);
//          the NIC may go on after fi_close(ep) returned 0.
#define CLASS_A 0
#define CLASS_B 1
#define CLASS_V 2
byte class;
bool lazy;    // the NIC never reports piece 1 by itself
bool patient; // the application never cancels and never closes

#define UP 0
#define BROKEN 1 // both ends get events and error entries
#define SILENT 2 // a partition: nothing, for ever
byte link;
bool accepted;   // the passive side has called fi_accept

bool dead[2];    // truth, unseen by core: the endpoint cannot touch memory any more
bool frozen[2];  // the process is stopped: none of its code runs
bool thawed[2];  // no second change: goes on for good, or is stopped for good
bool losses;     // this run loses its link at some step
byte stops;      // this run stops that side at some step; 2: neither

// READ as seen by the reader's NIC
#define IDLE 0
#define ACTIVE 1 // accepted by fi_read, may write its destination at any time
#define WROTE 2  // bytes have landed, no entry yet; may be written again
#define ENDED 3  // entry written: no more DMA from this one
byte rd[NP];
bool err[NP];    // status of that entry
byte cqe[NP];    // entries in the reader's CQ with this op_context
bool cqnull;     // an entry with op_context NULL or unknown
bool spurious;   // the NIC has made its one false entry

// The same READ as seen by the owner's NIC
#define NOTHING 0
#define QUEUED 1  // request accepted, source will be fetched
#define FETCHED 2
#define LOST 3
byte srv[NP];

// ---- core: reader -------------------------------------------------------------
#define NONE 0
#define TODO 1       // waits for budget
#define POSTED 2     // fi_read returned 0: only evidence ends this
#define DISCHARGED 3 // evidence consumed, or never posted
byte pc[NP];

#define RUNNING 1
#define OVER 2
byte tr[NT];

#define HAVE 1   // token arrived
#define GIVEUP 2 // application or revoke: no new READ, release owed
#define SENT 3   // release frame posted
byte gr;

// ---- core: owner ----------------------------------------------------------------
#define HELD 1
byte hg; // NONE, HELD, OVER

// Frames: sent at most once each. A SEND may overtake a READ.
#define FLYING 1
#define ARRIVED 2 // or lost
byte token, revoke, release;
inline lose(frame)
{
    if
    :: frame == FLYING -> frame = ARRIVED
    :: else
    fi
}

// ---- ghost ------------------------------------------------------------------------
#define APP 0  // somebody's property again: anyone may have it
#define LENT 1
#define QUAR 2 // nobody's
byte own[NT];
byte src;
byte ndone[NT], nrel[NT];
byte nrel_src;

#define OUTSTANDING (pc[0] == POSTED || pc[1] == POSTED)
#define UNPOSTED (pc[0] == TODO || pc[1] == TODO)
#define CQ_EMPTY (cqe[0] + cqe[1] == 0 && !cqnull)
#define AWAKE(s) (!frozen[s])
// Software providers move nothing while their process is stopped.
#define MOVES(s) (!dead[s] && (class != CLASS_B || !frozen[s]))
// What a side can notice by event, heartbeat, connect timer or READ watchdog.
#define NOTICES(s) (link != UP || frozen[1 - s] || conn[1 - s] >= CLOSING)

// ---- the two events of a transfer ---------------------------------------------
inline on_done(t)
{
#ifndef SEED_DONE_TWICE
    if
    :: ndone[t] == 0 -> ndone[t]++
    :: else
    fi
#else
    ndone[t]++
#endif
    ;
    assert(ndone[t] == 1) // P3
}

inline on_released(t, who)
{
    nrel[t]++;
    assert(nrel[t] == 1);        // P3
    assert(nrel[t] <= ndone[t]); // P4: done before released
    own[t] = who;
    tr[t] = OVER
}

// All pieces of t discharged: memory goes home, done first.
#define OWES(t)                                                                \
    ((T_OF(0) == t && (pc[0] == TODO || pc[0] == POSTED)) ||                   \
     (T_OF(1) == t && (pc[1] == TODO || pc[1] == POSTED)))
inline settle(t)
{
    if
    :: tr[t] == RUNNING && !OWES(t) ->
#ifdef SEED_RELEASED_BEFORE_DONE
        on_released(t, APP);
#endif
        if
        :: ndone[t] == 0 -> on_done(t)
        :: else
        fi
#ifndef SEED_RELEASED_BEFORE_DONE
        ;
        on_released(t, APP)
#endif
    :: else
    fi
}

// The result is known and bad. Pieces never posted need no evidence.
inline give_up(t)
{
#ifndef SEED_POST_WHILE_CLOSING
    if
    :: T_OF(0) == t && pc[0] == TODO -> pc[0] = DISCHARGED
    :: else
    fi;
    if
    :: T_OF(1) == t && pc[1] == TODO -> pc[1] = DISCHARGED
    :: else
    fi;
#endif
    on_done(t)
}

// Consumed once, found by sequence. Everything else is ignored.
inline evidence(p, bad)
{
    if
    :: pc[p] == POSTED ->
        pc[p] = DISCHARGED;
        if
        :: bad -> give_up(T_OF(p))
        :: else
        fi;
        settle(T_OF(p))
    :: else
#ifdef SEED_COUNT_DUPLICATES
        -> if // a plan that counts entries instead of naming them
        :: pc[0] == POSTED -> pc[0] = DISCHARGED; settle(T_OF(0))
        :: pc[0] != POSTED && pc[1] == POSTED -> pc[1] = DISCHARGED; settle(T_OF(1))
        :: else
        fi
#endif
    fi
}

// Class (b), or (c) where the domain's end proves: truth for the NIC.
inline kill_reader_nic()
{
    dead[R] = true;
    if :: rd[0] == ACTIVE || rd[0] == WROTE -> rd[0] = ENDED :: else fi;
    if :: rd[1] == ACTIVE || rd[1] == WROTE -> rd[1] = ENDED :: else fi
}

inline kill_owner_nic()
{
    dead[O] = true;
    if :: srv[0] == QUEUED -> srv[0] = LOST :: else fi;
    if :: srv[1] == QUEUED -> srv[1] = LOST :: else fi
}

// ---- reader ---------------------------------------------------------------------
#ifndef SEED_READ_AFTER_RELEASE
#define MAY_READ (gr == HAVE)
#else
#define MAY_READ (gr != NONE)
#endif

// The closing flag bars posts. The seed has looked at the flag before it was set,
// and waits for its turn; whoever destroys the endpoint waits for it.
#ifndef SEED_POST_WHILE_CLOSING
#define MAY_POST (conn[R] == OPEN)
#define MAY_DESTROY true
#else
#define MAY_POST (conn[R] >= OPEN)
#define MAY_DESTROY (!UNPOSTED)
#endif

inline start(t)
{
    tr[t] = RUNNING;
    own[t] = LENT;
    if :: T_OF(0) == t -> pc[0] = TODO :: else fi;
    if :: T_OF(1) == t -> pc[1] = TODO :: else fi
}

inline post(p)
{
    assert(conn[R] == OPEN && !gone[R] && accepted); // P9
    pc[p] = POSTED;
    rd[p] = ACTIVE
}

inline give_up_running(t)
{
    if
    :: tr[t] == RUNNING ->
        if
        :: ndone[t] == 0 -> give_up(t)
        :: else
        fi;
#ifdef SEED_SHUTDOWN_IS_EVIDENCE
        on_released(t, APP)
#else
        settle(t)
#endif
    :: else
    fi
}

// Any reason: the application, an event, heartbeat, watchdog, connect timer.
// The flag, fi_shutdown, and every transfer's result at once; no memory.
inline reader_begins_close()
{
    set_conn(R, CLOSING);
    give_up_running(0);
#ifdef TWO_TRANSFERS
    give_up_running(1);
#endif
    lose(token);
    lose(revoke);
    gr = NONE
}

inline flush_entry(p)
{
    if
    :: rd[p] == ACTIVE || rd[p] == WROTE -> cqe[p]++; err[p] = true
    :: else
    fi
}

// fi_close(ep). The provider makes entries up for what was outstanding.
inline reader_destroys(proof)
{
    flush_entry(0);
    flush_entry(1);
    gone[R] = true;
    if
    :: proof ->
        proved[R] = true;
        kill_reader_nic();
        evidence(0, true);
        evidence(1, true)
    :: else
    fi
}

inline read_entry(p)
{
    cqe[p]--;
#ifndef SEED_FLUSH_IS_EVIDENCE
    if
    :: !gone[R] -> evidence(p, err[p])
#ifdef SEED_DEAD_BRANCH
    :: false -> err[p] = true
#endif
    :: else // read after fi_close began: proves nothing
    fi
#else
    evidence(p, err[p])
#endif
    ;
    if
    :: cqe[p] == 0 -> err[p] = false
    :: else
    fi
}

inline quarantine(t)
{
    if
    :: tr[t] == RUNNING ->
        assert(gone[R] && !proved[R] && CQ_EMPTY); // P8
#ifdef SEED_LEAK_ON_CLOSE
        tr[t] = OVER
#else
#ifdef SEED_QUARANTINE_AS_FREE
        on_released(t, APP)
#else
        on_released(t, QUAR)
#endif
#endif
    :: else
    fi
}

inline cancel(t) // or its deadline
{
    give_up(t);
#ifdef SEED_RELEASE_ON_TIMEOUT
    on_released(t, APP)
#else
#ifdef SEED_QUARANTINE_AT_DEADLINE
    quarantine(t)
#else
    settle(t)
#endif
#endif
}

#ifndef SEED_DONE_TWICE
#define MAY_CANCEL(t) (tr[t] == RUNNING && ndone[t] == 0)
#else
#define MAY_CANCEL(t) (tr[t] == RUNNING)
#endif

// Every READ on the grant has its own evidence. Done is not enough.
#if !defined(SEED_EARLY_RELEASE_FRAME) && !defined(SEED_RELEASE_UNPROVED)
#define MAY_SEND_RELEASE (!OUTSTANDING && !UNPOSTED)
#else
#define MAY_SEND_RELEASE (!UNPOSTED && (tr[0] == NONE || ndone[0] == 1) &&     \
                          (tr[NT - 1] == NONE || ndone[NT - 1] == 1))
#endif

#ifndef SEED_NO_WATCHDOG
#define READER_NOTICES                                                         \
    (NOTICES(R) || (lazy && pc[1] == POSTED))
#else
#define READER_NOTICES (link == BROKEN || (conn[O] >= CLOSING && link == UP))
#endif
#ifndef SEED_NO_HEARTBEAT
#define OWNER_NOTICES NOTICES(O)
#else
#define OWNER_NOTICES (link == BROKEN || (conn[R] >= CLOSING && link == UP))
#endif

proctype Reader()
{
end:
    do
    // connection
    :: STEP { AWAKE(R) && conn[R] == CONNECTING && accepted && link == UP ->
        set_conn(R, OPEN) }
    :: STEP { AWAKE(R) && conn[R] <= OPEN && (!patient || READER_NOTICES) ->
        reader_begins_close() }
    :: STEP { AWAKE(R) && conn[R] == CLOSING && !gone[R] && MAY_DESTROY && class != CLASS_A ->
        reader_destroys(true) }
    :: STEP { AWAKE(R) && conn[R] == CLOSING && !gone[R] && MAY_DESTROY && class != CLASS_B ->
        reader_destroys(false) }
    :: STEP { AWAKE(R) && conn[R] == CLOSING && gone[R] && CQ_EMPTY ->
        quarantine(0);
#ifdef TWO_TRANSFERS
        quarantine(1);
#endif
        set_conn(R, CLOSED) }
    // completion queue, as long as it is open
    :: STEP { AWAKE(R) && cqe[0] > 0 -> read_entry(0) }
    :: STEP { AWAKE(R) && cqe[1] > 0 -> read_entry(1) }
    :: STEP { AWAKE(R) && cqnull -> cqnull = false }
    // frames in
    :: STEP { AWAKE(R) && conn[R] == OPEN && link == UP && token == FLYING ->
        token = ARRIVED;
        gr = HAVE }
    :: STEP { AWAKE(R) && conn[R] == OPEN && link == UP && revoke == FLYING &&
                gr != NONE ->
        revoke = ARRIVED;
        if
        :: gr == HAVE -> gr = GIVEUP
        :: else
        fi }
    // the application and its plans
    :: STEP { AWAKE(R) && conn[R] == OPEN && MAY_READ && tr[0] == NONE -> start(0) }
#ifdef TWO_TRANSFERS
    :: STEP { AWAKE(R) && conn[R] == OPEN && MAY_READ && tr[1] == NONE -> start(1) }
#endif
    :: STEP { AWAKE(R) && MAY_POST && pc[0] == TODO -> post(0) }
    :: STEP { AWAKE(R) && MAY_POST && pc[0] != TODO && pc[1] == TODO -> post(1) }
    :: STEP { AWAKE(R) && !patient && MAY_CANCEL(0) -> cancel(0) }
#ifdef TWO_TRANSFERS
    :: STEP { AWAKE(R) && !patient && MAY_CANCEL(1) -> cancel(1) }
#endif
    :: STEP { AWAKE(R) && conn[R] == OPEN && gr == HAVE -> gr = GIVEUP }
    :: STEP { AWAKE(R) && conn[R] == OPEN && gr == GIVEUP && MAY_SEND_RELEASE ->
#ifndef SEED_EARLY_RELEASE_FRAME
        assert(!OUTSTANDING); // P6
#endif
        gr = SENT;
        release = FLYING }
    // the domain's end: a proof or not
    :: STEP { AWAKE(R) && conn[R] == CLOSED && !dom[R] &&
                (own[0] == QUAR || own[NT - 1] == QUAR) ->
        dom[R] = true;
        kill_reader_nic();
#ifdef TWO_TRANSFERS
        if :: own[1] == QUAR -> own[1] = APP :: else fi;
#endif
        if :: own[0] == QUAR -> own[0] = APP :: else fi }
    :: STEP { AWAKE(R) && conn[R] == CLOSED && !dom[R] &&
                (own[0] == QUAR || own[NT - 1] == QUAR) ->
#ifdef SEED_DOMAIN_END_IS_PROOF
        own[0] = APP;
        own[NT - 1] = APP;
#endif
        dom[R] = true }
    od
}

// ---- owner -----------------------------------------------------------------------
inline source_released(who)
{
    nrel_src++;
    assert(nrel_src == 1); // P3
    src = who;
    hg = OVER
}

inline owner_begins_close()
{
    set_conn(O, CLOSING);
#ifdef SEED_TAKE_BACK_ON_DISCONNECT
    if
    :: hg == HELD -> source_released(APP)
    :: else
    fi;
#endif
    lose(release)
}

proctype Owner()
{
end:
    do
    :: STEP { AWAKE(O) && conn[O] == CONNECTING && !accepted && link == UP &&
                conn[R] == CONNECTING ->
        accepted = true }
    :: STEP { AWAKE(O) && conn[O] == CONNECTING && accepted && link == UP ->
        set_conn(O, OPEN) }
    :: STEP { AWAKE(O) && conn[O] <= OPEN && (!patient || OWNER_NOTICES) ->
        owner_begins_close() }
    :: STEP { AWAKE(O) && conn[O] == CLOSING && !gone[O] && class != CLASS_A ->
        gone[O] = true;
        proved[O] = true;
        kill_owner_nic();
        if
        :: hg == HELD -> source_released(APP)
        :: else
        fi }
    :: STEP { AWAKE(O) && conn[O] == CLOSING && !gone[O] && class != CLASS_B ->
        gone[O] = true }
    :: STEP { AWAKE(O) && conn[O] == CLOSING && gone[O] ->
        if
        :: hg == HELD ->
            assert(!proved[O]); // P8
            source_released(QUAR)
        :: else
        fi;
        set_conn(O, CLOSED) }
    // the grant
    :: STEP { AWAKE(O) && conn[O] == OPEN && hg == NONE ->
        hg = HELD;
        src = LENT;
        token = FLYING }
    :: STEP { AWAKE(O) && conn[O] == OPEN && hg == HELD && revoke == NONE ->
#ifdef SEED_REVOKE_TAKES_BACK
        source_released(APP);
#endif
        revoke = FLYING }
    :: STEP { AWAKE(O) && conn[O] == OPEN && link == UP && release == FLYING ->
        release = ARRIVED;
        if
        :: hg == HELD -> source_released(APP)
        :: else
        fi }
    :: STEP { AWAKE(O) && conn[O] == CLOSED && !dom[O] && src == QUAR ->
        dom[O] = true;
        kill_owner_nic();
        src = APP }
    :: STEP { AWAKE(O) && conn[O] == CLOSED && !dom[O] && src == QUAR ->
#ifdef SEED_DOMAIN_END_IS_PROOF
        src = APP;
#endif
        dom[O] = true }
    od
}

// ---- the NICs: one READ each, both ends ---------------------------------------
proctype Nic(byte p)
{
end:
    do
    // request leaves, and is accepted by the owner's endpoint
    :: STEP { rd[p] == ACTIVE && srv[p] == NOTHING && MOVES(R) && MOVES(O) &&
                link == UP && !gone[O] ->
        srv[p] = QUEUED }
    // source is read: at any time until the owner's endpoint is truly gone
    :: STEP { srv[p] == QUEUED && MOVES(O) ->
        assert(src != APP); // P2
        srv[p] = FETCHED }
    // destination is written: at any time until own entry or true end
    :: STEP { rd[p] == ACTIVE && srv[p] == FETCHED && MOVES(R) ->
        assert(own[T_OF(p)] != APP); // P1
        rd[p] = WROTE }
    // entry: success
    :: STEP { rd[p] == WROTE && MOVES(R) && !gone[R] && !(lazy && p == 1) ->
        assert(own[T_OF(p)] != APP); // P1: the last byte
        rd[p] = ENDED;
        cqe[p]++ }
    // entry: error. The owner's NIC may still have the request.
    :: STEP { (rd[p] == ACTIVE || rd[p] == WROTE) && MOVES(R) && !gone[R] &&
                (link == BROKEN || conn[R] == CLOSING ||
                 (link == UP && conn[O] >= CLOSING)) && !(lazy && p == 1) ->
        rd[p] = ENDED;
        err[p] = true;
        cqe[p]++ }
    // entry: refused by the owner's NIC
    :: STEP { rd[p] == ACTIVE && srv[p] == NOTHING && MOVES(R) && !gone[R] &&
                link == UP ->
        rd[p] = ENDED;
        err[p] = true;
        cqe[p]++ }
    // after fi_close without proof: a late write with no entry to tell of it
    :: STEP { rd[p] == WROTE && MOVES(R) && gone[R] ->
        assert(own[T_OF(p)] != APP); // P1: the last byte
        rd[p] = ENDED }
    // one false entry: a duplicate of this one, or without a context
    :: STEP { rd[p] == ENDED && !gone[R] && !spurious ->
        spurious = true;
        cqe[p]++ }
    :: STEP { rd[p] == ENDED && !gone[R] && !spurious ->
        spurious = true;
        cqnull = true }
    od
}

// ---- what befalls them -----------------------------------------------------------
inline lose_link(how)
{
    link = how;
    lose(token);
    lose(revoke);
    lose(release)
}

proctype Fate()
{
end:
    do
    :: STEP { losses && link == UP -> lose_link(BROKEN) }
    :: STEP { losses && patient && link == UP -> lose_link(SILENT) }
    :: STEP { stops != 2 && !frozen[stops] && !thawed[stops] -> frozen[stops] = true }
    :: STEP { stops != 2 && frozen[stops] && !thawed[stops] ->
        frozen[stops] = false;
        thawed[stops] = true }
    :: STEP { stops != 2 && frozen[stops] && !thawed[stops] ->
        thawed[stops] = true } // for ever
    od
}

// When nothing can move any more: who could still run must have ended well.
#define FINE(t) (tr[t] == NONE || (ndone[t] == 1 && nrel[t] == 1 && own[t] != LENT))
proctype Judge()
{
end:
    timeout;
    STEP {
        assert(frozen[R] || (FINE(0) && FINE(NT - 1)));                             // P5
        assert(frozen[R] || conn[R] == CLOSED || (conn[R] == OPEN &&
               (gr == NONE || gr == SENT)));                                   // P7
        assert(frozen[O] || hg == NONE || (nrel_src == 1 && src != LENT));     // P5
        assert(frozen[O] || conn[O] == CLOSED || conn[O] == OPEN);             // P7
        assert(frozen[R] || frozen[O] || conn[R] == conn[O]);                  // P7
        assert(class != CLASS_B || (own[0] != QUAR && own[NT - 1] != QUAR && src != QUAR)) // P8
    }
}

init
{
    atomic {
        if
        :: // Anything at any step. Each step of classes A and B is one of V's.
           // Stopping and silence only forbid steps and give causes to close;
           // here nobody needs a cause, and any step may be late for ever.
            class = CLASS_V;
            losses = true;
            stops = 2
        :: // Nobody helps by closing: every end must come by itself.
            patient = true;
            stops = 2;
#ifdef WIDE
            // All classes, all misfortunes together.
            select (class : CLASS_A .. CLASS_V);
            select (stops : 0 .. 2);
            if :: losses = true :: losses = false fi;
            if :: lazy = true :: lazy = false fi
#else
            // One misfortune a run, or none.
            select (class : CLASS_A .. CLASS_B);
            if
            :: true
            :: losses = true
            :: stops = R
            :: stops = O
            :: lazy = true
            fi
#endif
        fi;
        run Reader();
        run Owner();
        run Nic(0);
        run Nic(1);
        run Fate();
        run Judge()
    }
}

// P5 once more, as liveness: no run keeps memory lent for ever.
ltl ends {
    []<> (((own[0] != LENT && own[NT - 1] != LENT) || frozen[R]) &&
          (src != LENT || frozen[O]))
}
