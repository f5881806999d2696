// SPDX-License-Identifier: Apache-2.0
//
// One call with a read space and a write space, and everything that can end it. The client (C) owns the
// read space's buffer RS and the write space's buffer WT; the server (S) owns the handler's destination HD,
// into which it READs RS, and the source WS of its write, which the client READs into WT. Then a second
// session between the two, after a loss or the restart of either, in which a call has the same ids.
//
// As in lien.pml: `core` is what the library on a side believes, `nic` what the provider really does, `ghost`
// who owns each piece of memory and what its bytes are; core cannot see the last two, and the properties (Q1..Q8, README.md)
// judge by them. A deadline has no length: it may pass whenever it runs. Each step is what the library does under one lock.

#ifndef STEP
#define STEP d_step
#endif

#define C 0
#define S 1

// ---- ghost: memory -----------------------------------------------------------
#define APP 0  // somebody's property again: anyone may have it
#define LENT 1
#define QUAR 2 // nobody's
byte wt, hd, ws;    // owners
bool newer;         // RS holds other bytes than those that the call lent
bool stale;         // HD got some of those
bool landed;        // WT got the write's bytes
byte ndone, nrel;   // the call's events
byte nreld, nrels;  // released: HD, WS
bool killed[2];     // the process is gone, its memory with it

// ---- nic ----------------------------------------------------------------------
bool dead[2];       // that endpoint cannot touch memory any more
#define IDLE 0
#define ACTIVE 1    // accepted by fi_read, may write its destination at any time
#define FETCHED 2   // bytes are under way
#define WROTE 3     // they have landed; no entry yet
#define ENDED 4     // entry written
byte rd[2];         // the READ posted by that side: by S into HD, by C into WT
bool asked[2];      // the other side's NIC has the request and has not fetched yet
bool cqe[2];        // an entry in that side's queue
bool bad[2];        // its status

// ---- core: connection of the first session, per side -----------------------------
#define OPEN 0
#define CLOSING 1   // no posts; entries still count
#define GONE 2      // the endpoint is destroyed, by proof or without
byte conn[2];
bool class_b;       // fi_close(ep) is a proof
bool patient;       // nobody closes without a cause
bool loss;          // this run loses its connection at some step
byte kills;         // this run kills that process; 2: neither

// ---- core: client --------------------------------------------------------------
#define NONE 0
#define RUNNING 1
#define OVER 2
byte call;
#define HOME 0
#define AVAILABLE 1
#define READING 2
#define SEALED 3
#define LOST 4
byte target;
// One table, one setter, as in target.c.
#define MAY_ENTER(old, new)                                                    \
    ((old == HOME && new == AVAILABLE) ||                                      \
     (old == AVAILABLE && (new == READING || new == HOME)) ||                  \
     (old == READING && (new == AVAILABLE || new == SEALED)) ||                \
     (old == SEALED && (new == HOME || new == LOST)))
inline set_target(new)
{
    assert(MAY_ENTER(target, new)); // Q8
    target = new
}

// ---- core: server ---------------------------------------------------------------
#define LIVE 1
#define REPLYING 2  // awaits the answer to its write
#define CANCELLED 3
// OVER: the reply is posted, or nobody waits for it
byte request;
bool pure;          // LIEN_PURE: the reply is the check, nothing else leaves
#define POSTED 1
#define DISCHARGED 2
byte pull;          // READ of the read space
bool good;          // and it succeeded
#define YES 1
#define NO 2
byte verdict;       // of the owner about those bytes
bool used;          // the handler has worked on the bytes
bool effect;        // something left by another way than the call
byte write;         // NONE, POSTED, DISCHARGED: answered
bool written;       // and well
bool given_up;      // the handler did not wait for it

// ---- frames of the first session: sent at most once each -----------------------
#define FLYING 1
#define ARRIVED 2
byte f_call, f_cancel, f_probe, f_answer, f_write, f_written, f_reply;
bool says_yes;      // in ANSWER
bool wrote_ok;      // in WRITTEN
bool reply_ok;      // in REPLY

// ---- second session ---------------------------------------------------------------
byte again;         // its call, with the ids of the first: NONE, RUNNING, OVER
byte g_probe, g_reply;
bool foreign;       // the reply is of the first session's request

// What either side can notice of the other's end.
#define NOTICES(s) (conn[1 - s] != OPEN || killed[1 - s])
#define UP(s) (!killed[s] && conn[s] == OPEN)

// ---- the client's events --------------------------------------------------------------
inline on_released(who)
{
    nrel++;
    assert(nrel == 1);     // Q3
    assert(nrel <= ndone); // Q3: last
    wt = who
}

inline on_done()
{
    ndone++;
    assert(ndone == 1) // Q3
}

// The call ends: its borrow of RS at once, its target when no READ writes into it.
inline end_call()
{
    call = OVER;
#ifdef SEED_RELEASED_BEFORE_DONE
    if :: target == AVAILABLE -> set_target(HOME); on_released(APP) :: else fi;
#endif
    on_done();
    if
#ifndef SEED_RELEASED_BEFORE_DONE
#ifndef SEED_WRITE_AFTER_END
    :: target == AVAILABLE -> set_target(HOME); on_released(APP)
#else
    :: target == AVAILABLE -> on_released(APP) // and still takes a write
#endif
#endif
#ifndef SEED_CANCEL_RELEASES_TARGET
    :: target == READING -> set_target(SEALED)
#else
    :: target == READING -> set_target(SEALED); on_released(APP) // no evidence
#endif
    :: else
    fi
}

// Evidence for the READ into WT: the recovery puts it back.
inline target_back()
{
    if
    :: target == READING -> set_target(AVAILABLE)
#ifndef SEED_RECOVERY_FORGOTTEN
    :: target == SEALED ->
        set_target(HOME);
#ifndef SEED_CANCEL_RELEASES_TARGET
        on_released(APP)
#endif
#endif
    :: else
    fi
}

inline answer_write(ok)
{
    if
    :: conn[C] == OPEN -> f_written = FLYING; wrote_ok = ok
    :: else
    fi
}

#ifdef SEED_WRITE_AFTER_END
#define TAKES_WRITE (target == AVAILABLE)
#else
#define TAKES_WRITE (call == RUNNING && target == AVAILABLE)
#endif
#ifdef SEED_PROBE_ALWAYS_YES
#define HOLDS true
#else
#define HOLDS (call == RUNNING)
#endif
#ifdef SEED_REPLY_TO_DEAD_CALL
#define TAKES_REPLY true
#else
#define TAKES_REPLY (call == RUNNING)
#endif

inline client_begins_close()
{
    conn[C] = CLOSING;
    if :: call == RUNNING -> end_call() :: else fi
}

proctype Client()
{
end:
    do
    :: STEP { UP(C) && call == NONE ->
        call = RUNNING;
        set_target(AVAILABLE);
        wt = LENT;
        f_call = FLYING }
    // deadline or cancel
    :: STEP { UP(C) && call == RUNNING ->
        end_call();
        f_cancel = FLYING }
    // the borrow has ended: RS is the application's to write
    :: STEP { !killed[C] && call == OVER && !newer -> newer = true }
    // frames in
    :: STEP { UP(C) && f_reply == FLYING ->
        f_reply = ARRIVED;
        if
        :: TAKES_REPLY ->
            assert(!reply_ok || target != READING);            // Q5: it waits for its writes
            assert(!reply_ok || write == NONE || landed);      // Q5: and is true
            assert(!reply_ok || !used || !stale);              // Q6
            end_call()
        :: else
        fi }
    :: STEP { UP(C) && f_write == FLYING ->
        f_write = ARRIVED;
        if
        :: TAKES_WRITE ->
            assert(!used || !stale); // Q6: bytes built on them get nowhere
            set_target(READING);
            rd[C] = ACTIVE;
            asked[S] = true
        :: else -> answer_write(false)
        fi }
    :: STEP { UP(C) && f_probe == FLYING ->
        f_probe = ARRIVED;
        f_answer = FLYING;
        says_yes = HOLDS }
    // evidence of its own READ
    :: STEP { !killed[C] && conn[C] != GONE && cqe[C] ->
        cqe[C] = false;
        target_back();
        answer_write(!bad[C]) }
    // the connection's end
    :: STEP { UP(C) && (!patient || NOTICES(C)) -> client_begins_close() }
    :: STEP { !killed[C] && conn[C] == CLOSING && class_b && !cqe[C] ->
        conn[C] = GONE;
        dead[C] = true;
        target_back() }
    :: STEP { !killed[C] && conn[C] == CLOSING && !class_b && !cqe[C] ->
        conn[C] = GONE;
        if
        :: target == SEALED && nrel == 0 -> set_target(LOST); on_released(QUAR)
        :: else
        fi }
    // a new session: the same process connects again, or one that was started anew
    :: STEP { conn[C] == GONE && again == NONE && !(killed[S] && killed[C]) ->
        again = RUNNING;
        newer = true }
#ifdef SEED_PROBE_IN_NEXT_SESSION
    :: STEP { again == RUNNING && g_probe == FLYING ->
        g_probe = ARRIVED; // ids match: it can but say yes
        f_answer = FLYING;
        says_yes = true }
#endif
    :: STEP { again == RUNNING && g_reply == FLYING ->
        g_reply = ARRIVED;
        assert(!foreign); // Q7
        again = OVER }
    :: STEP { again == RUNNING -> again = OVER } // its deadline
    od
}

// ---- the server's events -------------------------------------------------------------
inline hd_released(who)
{
    nreld++;
    assert(nreld == 1); // Q3
    hd = who
}

inline ws_released(who)
{
    nrels++;
    assert(nrels == 1); // Q3
    ws = who
}

inline cancel_request()
{
    request = CANCELLED;
#ifdef SEED_HANDLER_BUFFER_AT_CANCEL
    if :: hd == LENT -> hd_released(APP) :: else fi;
#endif
#ifdef SEED_WRITE_SOURCE_AT_CANCEL
    if :: ws == LENT -> ws_released(APP) :: else fi
#endif
}

inline pull_back(ok)
{
    if
    :: pull == POSTED ->
        pull = DISCHARGED;
        good = ok;
        if :: hd == LENT -> hd_released(APP) :: else fi
    :: else
    fi
}

#ifndef SEED_PROBE_BEFORE_EVIDENCE
#define MAY_PROBE (pull == DISCHARGED && good)
#else
#define MAY_PROBE (pull != NONE)
#endif
#ifndef SEED_REPLY_BEFORE_WRITES
#define WRITES_ANSWERED (write != POSTED)
#else
#define WRITES_ANSWERED true
#endif
// Success is the handler's word; core holds it back where it cannot be true.
#define WRITES_WELL (write == NONE || (write == DISCHARGED && written))
#define USABLE (pull == DISCHARGED && good && (pure || verdict == YES))

inline post_reply(ok)
{
    request = OVER;
    if
    :: conn[S] == OPEN -> f_reply = FLYING; reply_ok = ok
    :: else
    fi
}

proctype Server()
{
end:
    do
    // frames in
    :: STEP { UP(S) && f_call == FLYING -> f_call = ARRIVED; request = LIVE }
    :: STEP { UP(S) && f_cancel == FLYING && f_call == ARRIVED ->
        f_cancel = ARRIVED;
        if
        :: request == LIVE || request == REPLYING -> cancel_request()
        :: else
        fi }
    // its own deadline, which came with the call
    :: STEP { !killed[S] && (request == LIVE || request == REPLYING) -> cancel_request() }
    :: STEP { !killed[S] && f_answer == FLYING && (conn[S] == OPEN || g_probe != NONE) ->
        f_answer = ARRIVED;
        if :: says_yes -> verdict = YES :: else -> verdict = NO fi }
    :: STEP { UP(S) && f_written == FLYING ->
        f_written = ARRIVED;
        if
        :: write == POSTED ->
            write = DISCHARGED;
            written = wrote_ok;
            if :: ws == LENT -> ws_released(APP) :: else fi
        :: else
        fi }
    // the handler
    :: STEP { UP(S) && request == LIVE && pull == NONE && write == NONE ->
        pull = POSTED;
        hd = LENT;
        rd[S] = ACTIVE;
        asked[C] = true }
    :: STEP { !killed[S] && conn[S] != GONE && cqe[S] -> cqe[S] = false; pull_back(!bad[S]) }
    :: STEP { UP(S) && !pure && MAY_PROBE && f_probe == NONE && g_probe == NONE && verdict == NONE &&
                (request == LIVE || request == CANCELLED) ->
        f_probe = FLYING }
#ifdef SEED_PROBE_IN_NEXT_SESSION
    :: STEP { !killed[S] && !pure && MAY_PROBE && f_probe == NONE && g_probe == NONE &&
                again == RUNNING -> g_probe = FLYING }
#endif
    // an effect outside of the call: only of verified bytes. It may come after the request was cancelled.
    :: STEP { !killed[S] && !effect && USABLE && verdict == YES && (request == LIVE || request == CANCELLED) ->
        effect = true;
        assert(!stale) } // Q6
    // a write and a reply may come from bytes that are not verified, in a pure handler
    :: STEP { request == LIVE && !killed[S] && !used && USABLE -> used = true }
    :: STEP { UP(S) && request == LIVE && write == NONE && pull != POSTED ->
        write = POSTED;
        ws = LENT;
        f_write = FLYING }
    :: STEP { !killed[S] && request == LIVE && write == POSTED && !given_up -> given_up = true }
    // reply: success, where it may be; else failure
    :: STEP { !killed[S] && request == LIVE && pull != POSTED && !given_up -> request = REPLYING }
#ifdef SEED_GIVEN_UP_SUCCEEDS
    :: STEP { !killed[S] && request == LIVE && given_up -> post_reply(true) }
#endif
    :: STEP { !killed[S] && request == REPLYING && WRITES_ANSWERED ->
#ifdef SEED_REPLY_BEFORE_WRITES
        post_reply(true)
#else
        if :: WRITES_WELL -> post_reply(true) :: else -> post_reply(false) fi
#endif
        }
    :: STEP { !killed[S] && (request == LIVE || request == CANCELLED) -> post_reply(false) }
#ifdef SEED_REPLY_IN_NEXT_SESSION
    :: STEP { !killed[S] && request == REPLYING && WRITES_ANSWERED && again == RUNNING && g_reply == NONE ->
        request = OVER;
        g_reply = FLYING;
        foreign = true }
#endif
    // the connection's end
    :: STEP { UP(S) && (!patient || NOTICES(S)) ->
        conn[S] = CLOSING;
        if :: request == LIVE || request == REPLYING -> cancel_request() :: else fi }
    :: STEP { !killed[S] && conn[S] == CLOSING && class_b && !cqe[S] ->
        conn[S] = GONE;
        dead[S] = true;
        pull_back(false);
        if :: ws == LENT -> ws_released(APP) :: else fi }
    :: STEP { !killed[S] && conn[S] == CLOSING && !class_b && !cqe[S] ->
        conn[S] = GONE;
        if :: hd == LENT -> hd_released(QUAR) :: else fi;
        if :: ws == LENT -> ws_released(QUAR) :: else fi }
    // the second session's own server
    :: STEP { again == RUNNING && g_reply == NONE -> g_reply = FLYING; foreign = false }
    od
}

// ---- the READ posted by side s, at both ends ---------------------------------------
#define OTHER (1 - s)
proctype Nic(byte s)
{
end:
    do
    // the source is fetched: at any time until the true end of that endpoint
    :: STEP { asked[OTHER] && !dead[OTHER] ->
        asked[OTHER] = false;
        if
        :: s == C -> assert(ws != APP)           // Q2
        :: s == S && rd[S] == ACTIVE && newer -> stale = true
        :: else
        fi;
        if :: rd[s] == ACTIVE -> rd[s] = FETCHED :: else fi }
    // the destination is written
    :: STEP { rd[s] == FETCHED && !dead[s] ->
        if
        :: s == C -> assert(wt != APP)           // Q1
        :: else -> assert(hd != APP)             // Q1
        fi;
        rd[s] = WROTE }
    // entry: success
    :: STEP { rd[s] == WROTE && !dead[s] && conn[s] != GONE ->
        rd[s] = ENDED;
        cqe[s] = true;
        if :: s == C -> landed = true :: else fi }
    // entry: error. The other NIC may still have the request.
    :: STEP { rd[s] != IDLE && rd[s] != ENDED && !dead[s] && conn[s] != GONE &&
                (conn[s] == CLOSING || NOTICES(s)) ->
        rd[s] = ENDED;
        bad[s] = true;
        cqe[s] = true }
    // refused by the other NIC
    :: STEP { rd[s] == ACTIVE && asked[OTHER] && !dead[s] && conn[s] != GONE ->
        rd[s] = ENDED;
        asked[OTHER] = false;
        bad[s] = true;
        cqe[s] = true }
    od
}

// ---- what befalls them -----------------------------------------------------------------
inline kill(s)
{
    killed[s] = true;
    conn[s] = GONE;
    dead[s] = true // the kernel takes the endpoint with the process
}

proctype Fate()
{
end:
    do
    :: STEP { loss && conn[C] == OPEN && conn[S] == OPEN -> loss = false; client_begins_close() }
    :: STEP { kills == C && !killed[C] -> kill(C) }
    :: STEP { kills == S && !killed[S] -> kill(S) }
    od
}

// When nothing can move any more.
proctype Judge()
{
end:
    timeout;
    STEP {
        assert(killed[C] || call == NONE || (ndone == 1 && nrel == 1));       // Q3, Q4
        assert(killed[C] || wt != LENT);                                        // Q4
        assert(killed[S] || (hd != LENT && ws != LENT));                        // Q4
        assert(killed[C] || (target != AVAILABLE && target != READING && target != SEALED)); // Q4
        assert(killed[S] || request == NONE || request == OVER)                 // Q3
    }
}

init
{
    atomic {
        if :: class_b = true :: class_b = false fi;
        if :: pure = true :: pure = false fi;
        if
        :: // Anybody may close at any step, for no cause.
#ifdef WIDE
            select (kills : 0 .. 2)
#else
            kills = 2
#endif
        :: // Nobody helps by closing: every end must come by itself.
            patient = true;
#ifdef WIDE
            select (kills : 0 .. 2);
            if :: loss = true :: loss = false fi
#else
            // One misfortune a run, or none.
            if
            :: kills = 2
            :: kills = 2; loss = true
            :: kills = C
            :: kills = S
            fi
#endif
        fi;
        run Client();
        run Server();
        run Nic(C);
        run Nic(S);
        run Fate();
        run Judge()
    }
}
