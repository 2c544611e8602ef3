/*
 * brevity.h - the C interface of Brevity, which averages gradients between processes, with compression.
 *
 * Ranks of a data-parallel program exchange gradients as sparse or low-rank messages over UCX, TCP or shared
 * memory. Error feedback keeps what is not sent and sends it later.
 *
 *     brv_group *group = NULL;
 *     brv_feedback *feedback = NULL;
 *     if (brv_group_join(NULL, &group) != BRV_OK) { fputs(brv_last_error(), stderr); return 1; }
 *     brv_all_reduce(group, gradient, gradient, n, BRV_F32, BRV_AVERAGE, NULL);
 *     brv_feedback_new(&feedback);
 *     brv_gtopk_average(group, feedback, gradient, n, 0.001, NULL);
 *     brv_barrier(group, NULL);
 *     brv_feedback_free(feedback);
 *     brv_group_free(group);
 *
 * Ranks       All ranks make the same collective calls on a group in the same order, with the same n, type,
 *             reduction, root and shape. A rank that makes another call gets BRV_ERR_MISMATCH, or
 *             BRV_ERR_TIMEOUT if no rank was waiting for it. A non-blocking call and its blocking form are
 *             the same call. Messages between two ranks take no part in this.
 * Blocking    Every collective has a blocking function, and one that starts it and gives a brv_request. A
 *             blocking call returns when it is done on this rank, fails, or its timeout passes
 *             (BREVITY_TIMEOUT in seconds, 300 by default; 60 for joining). It never hangs.
 * Ownership   The library uses memory that is passed to a blocking call only until the call returns, and
 *             memory that is passed to a call with a request until the request has ended. Objects that a
 *             function makes belong to the caller, who frees them with the free function of the same prefix.
 *             Strings belong to the library.
 * Options     The last argument of a call that sends is a brv_options, or NULL for none. brv_try_send and the
 *             parts of a step (brv_exchange_begin, _ready, _finish) have none.
 * NULL        NULL is refused with BRV_ERR_ARGUMENT, except in these cases: the free functions do nothing
 *             for NULL; an array of 0 elements may be NULL; a place for a result that is marked "may be
 *             NULL"; functions that return no status say what they return for NULL. Pointers must be aligned
 *             for their type.
 * Results     Reductions and the averages give the same bits on every rank, in any floating-point mode
 *             (rounding, flushed denormals) of the calling thread; the thread keeps its mode. A sum or
 *             product that involves NaN is NaN on every rank, but its bits depend on the processor.
 * Threads     A group may be used from any thread, and by several at once as long as all ranks still make
 *             their collective calls in the same order. A feedback, an exchange, a server or a request is
 *             used by one thread at a time; for all but a request another gets BRV_ERR_ARGUMENT. Free an
 *             object only when no thread uses it any more. brv_last_error is per thread. Do not cancel a
 *             thread (pthread_cancel) that is in a call.
 * Callbacks   A callback runs on a thread that is in a call of this library, or on a thread of the library,
 *             which holds no lock meanwhile. It may start calls, and test and free requests. A call that
 *             waits is refused there with BRV_ERR_ARGUMENT, also brv_request_wait for 0 seconds and
 *             brv_group_prepare_sleep; a wait for requests that have ended is not. It must not throw or jump
 *             out. A brv_reduce_function may make no call at all.
 * Signals     In a signal handler only brv_group_abort may be called.
 * Processes   In a forked child, calls that need a peer are refused with BRV_ERR_ARGUMENT if the parent made
 *             the group; the parent's job goes on. A child may free its copies of the parent's objects, and
 *             move exchanges and feedbacks to a group that it has made itself.
 * Errors      Functions that can fail return a brv_status, and leave a text in brv_last_error and a rank in
 *             brv_last_error_rank. BRV_ERR_ARGUMENT is returned before anything is sent: the other ranks do
 *             not know of it and still wait for this rank's call. After BRV_ERR_PEER_LOST, BRV_ERR_ABORTED,
 *             BRV_ERR_TIMEOUT of a collective, BRV_ERR_MISMATCH, BRV_ERR_PROTOCOL, BRV_ERR_USER, and
 *             BRV_ERR_TRANSPORT that is due to lack of memory, the group is closed on all ranks: every
 *             further call fails with that error again, BRV_ERR_ABORTED or BRV_ERR_PEER_LOST; of a call that
 *             is started its request does. An event loop asks brv_group_status. After other errors the group
 *             stays usable. Calls on a brv_server but brv_server_begin close no group.
 * Structs     Structs that the caller fills in begin with their size and are set by an initialiser macro, as
 *             in brv_options options = BRV_OPTIONS_INIT. Later versions only give meanings to reserved
 *             fields, which must be 0, and a value 0 or BRV_UNSET there means what it does today.
 */
#ifndef BREVITY_H
#define BREVITY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------------------------- */

/* The version of this header. */
#define BRV_VERSION_MAJOR 0
#define BRV_VERSION_MINOR 1
#define BRV_VERSION_PATCH 0
#define BRV_VERSION "0.1.0"

/* The interface that this header describes, and the number in the soname. It rises when programs must be
 * recompiled. */
#define BRV_ABI_VERSION 2

/* The version of the library in use, for example "0.1.0". Never NULL; valid for the life of the process. */
const char *brv_version(void);

/* The ABI version of the library in use. A program that loads the library with dlopen must compare it with
 * BRV_ABI_VERSION before it calls anything else; for other programs the linker does so. */
uint32_t brv_abi_version(void);

/* The largest value of an enum, so that all of them have 32 bits. */
#define BRV_ENUM_MAX 0x7fffffff

/* A number in a struct that leaves the choice to the environment or the library. */
#define BRV_UNSET (-1)

/* ---- Errors -------------------------------------------------------------------------------------------- */

/* What a call returns. Numbers never change; new ones may be added, so treat everything except BRV_OK and
 * BRV_PENDING as a failure. */
typedef enum brv_status {
    /* Done. */
    BRV_OK = 0,
    /* An argument is wrong: nothing was sent, nothing was changed. Correct the call. */
    BRV_ERR_ARGUMENT = 1,
    /* A rank has died, or its connection is gone. All groups with that rank are closed. Rank: the lost rank.
     */
    BRV_ERR_PEER_LOST = 2,
    /* A rank called brv_group_abort. The group is closed. Rank: that rank. */
    BRV_ERR_ABORTED = 3,
    /* A rank did not answer before the timeout, or did not join. The group is closed. Rank: the late rank.
     * For a message between two ranks or a one-sided operation nothing is closed; see brv_send. */
    BRV_ERR_TIMEOUT = 4,
    /* A rank made another call than this one; brv_last_error says what differs, if ranks have found out. The
     * group is closed. Rank: that rank if this one has met it, else -1. */
    BRV_ERR_MISMATCH = 5,
    /* A rank handed in NaN or infinity, or a sum overflowed. The same on every rank; gradients and
     * residuals do not contain the step (up to one rounding), and the group stays usable. Rank: the rank that
     * had the value, or that computed a sum of finite values and found it too large; -1 for a sum that all
     * ranks have computed. */
    BRV_ERR_NON_FINITE = 6,
    /* An environment variable, or a field of brv_config, is missing or invalid. */
    BRV_ERR_ENVIRONMENT = 7,
    /* A peer violated the protocol: another version, another job, or not a rank at all. Rank: the peer, if
     * known. */
    BRV_ERR_PROTOCOL = 8,
    /* The network or the operating system failed, or the requested transport is not available. */
    BRV_ERR_TRANSPORT = 9,
    /* A defect in the library: a panic was caught before it reached the caller. Free the objects concerned
     * and report it. */
    BRV_ERR_PANIC = 10,
    /* Something is used up; nothing has changed, and the group stays usable.
     * Memory: there is none for the residuals of an exchange or a feedback, for the work of a step, or for
     * saving. Nothing was sent: the other ranks do not know of it and still wait for this rank's call.
     * Groups: a new one finds no number that is free on all its ranks (a rank can be in 1,007 groups beside
     * that of its job). The same on every rank. Free groups that are not used any more. */
    BRV_ERR_EXHAUSTED = 11,
    /* A message, or a wait for a server, was given up by brv_request_cancel. The group stays usable. */
    BRV_ERR_CANCELED = 12,
    /* A message was longer than its place, or no whole number of elements. It was taken and is lost; the
     * group stays usable. Rank: the sender. */
    BRV_ERR_TRUNCATED = 13,
    /* A reduction of the program (brv_reduction_register) has failed on this rank; brv_last_error has its
     * name and what it returned. The group is closed: other ranks get BRV_ERR_ABORTED. */
    BRV_ERR_USER = 14,
    /* The other ranks go on without this one, which did not answer in time (brv_group_shrink). */
    BRV_ERR_EXCLUDED = 15,
    /* Too few ranks of the group have answered to go on (brv_group_shrink). */
    BRV_ERR_NO_MAJORITY = 16,
    /* This library was built without what the call needs; brv_last_error names the feature. Nothing was sent,
     * nothing was changed. */
    BRV_ERR_UNSUPPORTED = 17,
    /* Not an error: the request has not ended, no message has come, or nothing could be sent without waiting.
     * Leaves brv_last_error as it is. */
    BRV_PENDING = 100,
    BRV_STATUS_MAX = BRV_ENUM_MAX
} brv_status;

/* The name of a status, for example "BRV_ERR_PEER_LOST"; "unknown status" for other numbers. Never NULL. */
const char *brv_status_string(brv_status status);

/* The text of this thread's last failed call, in one line with the remedy; "" if none has failed. Calls that
 * succeed do not change it. Never NULL. Valid until the thread's next failed call, or its end. */
const char *brv_last_error(void);

/* The rank that this thread's last failed call was about (see brv_status), or -1 for no rank. Like the ranks
 * in texts, it is the number in the world: see brv_group_world_rank. */
int32_t brv_last_error_rank(void);

/* How much is logged: warnings by default. */
typedef enum brv_log_level {
    BRV_LOG_OFF = 0,
    BRV_LOG_ERROR = 1,
    BRV_LOG_WARN = 2,
    BRV_LOG_INFO = 3,
    BRV_LOG_DEBUG = 4,
    BRV_LOG_TRACE = 5,
    BRV_LOG_LEVEL_MAX = BRV_ENUM_MAX
} brv_log_level;

/* Prints the library's warnings on standard error from now on, one line each: those of the level in
 * BREVITY_LOG (off, error, warn, info, debug, trace; warn by default). brv_group_join does the same if
 * BREVITY_LOG is set and brv_log_to_callback was not called. Otherwise the library prints nothing. Call it
 * before the first group is made. */
brv_status brv_log_to_stderr(void);

/* Receives one line of the log, without a line break. It may be called by several threads at once, and must
 * not call this library. */
typedef void (*brv_log_function)(brv_log_level level, const char *line, void *user_data);

/* Hands the log up to this level to a function from now on, instead of standard error; NULL ends that, and
 * nothing is printed then. Another thread may be in the function before for a short time after this has
 * returned. Call it before the first group is made, so that no line is lost. BRV_ERR_ARGUMENT if a program in
 * Rust that contains this library has a subscriber of its own. */
brv_status brv_log_to_callback(brv_log_function function, void *user_data, brv_log_level level);

/* ---- Joining a job ------------------------------------------------------------------------------------- */

/* The ranks of a job, or some of them (brv_group_split), for collective calls and messages.
 *
 * Calls on different groups are independent: they may run at the same time, from several threads, and an
 * error closes only the group of its call. A lost rank closes all groups that it is a member of, and no
 * others.
 *
 * The ranks of a group are numbered from 0. The world is the group of all ranks of the job: their numbers
 * there are those that errors name. */
typedef struct brv_group brv_group;

/* The length of brv_id. */
#define BRV_ID_BYTES 128

/* The identifier of one job. Rank 0 makes it with brv_id_new, and the program's own store (a pipe, a file, a
 * database, MPI_Bcast) carries its bytes to the other ranks. The store must be trusted: who has the bytes can
 * join the job, because they contain its key, unless the config of brv_id_new has one. It is for one group:
 * make another for the next one. A join that has failed may be tried again with it. */
typedef struct brv_id {
    uint8_t bytes[BRV_ID_BYTES];
} brv_id;

/* An all-gather of the program's own: copies the `bytes` bytes at own of every rank to all, in the order of
 * ranks (`world_size` times `bytes` in all). Returns 0, or another number for a failure. Called once, on the
 * thread that joins. */
typedef int (*brv_all_gather_function)(const void *own, void *all, size_t bytes, void *user_data);

#define BRV_CONFIG_MAGIC 0x62727663u

/* How a process joins a job. Set it with BRV_CONFIG_INIT and change what is needed: what is left unset has
 * the value that the environment variable in brackets has, if rank and world_size are left unset too, or
 * else its default. Nothing is kept: strings and the id are copied. */
typedef struct brv_config {
    uint64_t size;    /* sizeof(brv_config) */
    uint32_t magic;   /* BRV_CONFIG_MAGIC */
    uint32_t version; /* BRV_ABI_VERSION */

    /* This rank and the number of ranks: both, or neither for those of the environment. The environment must
     * then describe a whole job, with a place to meet, also if one is set here. */
    int32_t rank;
    int32_t world_size;

    /* Where ranks meet, one of the three; needed if rank and world_size are set and there are several.
     * address: host:port where rank 0 listens and the others call it [BREVITY_MASTER].
     * id: from brv_id_new on rank 0, in the process that joins as rank 0.
     * all_gather: a function of the program's own, called on every rank. */
    const char *address;
    const brv_id *id;
    brv_all_gather_function all_gather;
    void *all_gather_data;

    /* The job's key: hexadecimal digits of at least 16 bytes, or other text of at least 16 bytes
     * [BREVITY_KEY]; or a file that contains it [BREVITY_KEY_FILE]. Ranks prove that they have it. With an id
     * or an all-gather, rank 0 makes one by default. */
    const char *key;
    const char *key_file;

    /* The job's name, the same on all ranks, at most 64 bytes [BREVITY_JOB]. */
    const char *job;

    /* "auto", "ucx" or "tcp"; rank 0's counts [BREVITY_TRANSPORT]. */
    const char *transport;

    /* The network interface to listen on, by name or address [BREVITY_INTERFACE]. */
    const char *network_interface;

    /* host or host:port of a forwarded address that others connect to [BREVITY_ANNOUNCE]. */
    const char *announce;

    /* A name of this host, if the system's own names do not tell hosts apart [BREVITY_HOST_ID]. */
    const char *host_id;

    /* Seconds that joining and later calls may take [BREVITY_JOIN_TIMEOUT, BREVITY_TIMEOUT]. */
    double join_timeout;
    double timeout;

    /* 0 or 1: ranks of one host share memory [BREVITY_SHARED_MEMORY]; tcp is encrypted [BREVITY_ENCRYPT]; a
     * thread moves requests while no thread is in a call [BREVITY_PROGRESS_THREAD]. */
    int32_t shared_memory;
    int32_t encrypt;
    int32_t progress_thread;

    /* The ports to listen on, both included; 0 for the system's choice [BREVITY_PORT_RANGE]. */
    uint16_t first_port;
    uint16_t last_port;

    /* host:port where ranks that were lost come back (brv_group_grow), on the host of the lowest rank that is
     * left [BREVITY_RETURN, by default address]. */
    const char *place_of_return;

    /* How often this rank was started again, or 0 [BREVITY_INCARNATION]. A process with a number comes back
     * to the job with this rank, world_size, key and name: brv_group_join ends when it is taken back. If the
     * job has not begun, or all ranks were started again, it joins like the others. */
    uint32_t incarnation;

    /* What decides which algorithms calls take; rank 0's counts. Each is unset at 0 or NULL.
     * any_order: BRV_ORDER_ANY lets sums of floating-point numbers have any order, where that is faster,
     * BRV_ORDER_FIXED does not [BREVITY_ANY_ORDER].
     * machine: links and speeds, as "inside:1,0.5,0.1;between:50,2,8", instead of measuring them
     * [BREVITY_MACHINE].
     * algorithm: algorithms in place of the fastest, as "all-reduce:halving,broadcast:binomial"
     * [BREVITY_ALGORITHM].
     * segment: bytes of a message of a long vector, 64 to 2^30 [BREVITY_SEGMENT]. */
    uint32_t any_order;
    const char *machine;
    const char *algorithm;
    uint64_t segment;

    uint64_t reserved[3];
} brv_config;

/* For brv_config.any_order. */
#define BRV_ORDER_FIXED 1u
#define BRV_ORDER_ANY 2u

#define BRV_CONFIG_INIT                                                                                     \
    {sizeof(brv_config), BRV_CONFIG_MAGIC, BRV_ABI_VERSION, BRV_UNSET, BRV_UNSET, NULL, NULL, NULL, NULL,   \
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, BRV_UNSET, BRV_UNSET, BRV_UNSET, BRV_UNSET, BRV_UNSET, 0, 0, \
     NULL, 0, 0, NULL, NULL, 0, {0, 0, 0}}

/* Makes the identifier of a new job, with this process as its rank 0, in *id. config may be NULL; of its
 * fields network_interface, announce, the ports and the key count here, and the environment does not. With a
 * key of its own the identifier contains none: all ranks must have that key. The process keeps a port
 * reserved until it joins with the identifier.
 *
 * BRV_ERR_ARGUMENT, BRV_ERR_ENVIRONMENT, BRV_ERR_TRANSPORT (no port, or no random bytes). */
brv_status brv_id_new(const brv_config *config, brv_id *id);

/* Joins a job and stores the group of all its ranks in *group. Blocks until all ranks have joined, at most
 * for the timeout of joining and 2 seconds more to learn which rank is missing. On failure *group is NULL.
 *
 * If config is NULL, the environment describes the job: variables set by `brevity run`, by a launcher, or by
 * hand (BREVITY_RANK, BREVITY_WORLD_SIZE, BREVITY_MASTER, and BREVITY_KEY or BREVITY_JOB). If it describes
 * none, the group has this process alone.
 *
 * A process may be in several jobs, at the same time and one after another.
 *
 * BRV_ERR_ARGUMENT if the config has no valid form; BRV_ERR_ENVIRONMENT for its fields and for variables;
 * BRV_ERR_TIMEOUT (naming the first missing rank); BRV_ERR_PROTOCOL; BRV_ERR_TRANSPORT, also for an
 * all-gather that fails and a key file that can't be read. All ranks may try again.
 *
 * A program that is linked statically altogether (-static) has no UCX: the dynamic linker must load it. */
brv_status brv_group_join(const brv_config *config, brv_group **group);

/* Makes a group of this process alone and stores it in *group: every call works, nothing is sent. Memory of a
 * peer (brv_remote_memory_open) needs one. */
brv_status brv_group_solo(brv_group **group);

/* ---- Options ------------------------------------------------------------------------------------------- */

/* The algorithms of dense collectives and of brv_topk_all_reduce, which docs/algorithms.md describes. A call
 * refuses one that does not fit it, with the names of those that do. All but BRV_ALGORITHM_SLOTS go by
 * messages, also among ranks that share memory. */
typedef enum brv_algorithm {
    BRV_ALGORITHM_ANY = 0, /* the library's choice */
    BRV_ALGORITHM_DISSEMINATION = 1,
    BRV_ALGORITHM_BINOMIAL = 2,
    BRV_ALGORITHM_KNOMIAL_4 = 3,
    BRV_ALGORITHM_KNOMIAL_8 = 4,
    BRV_ALGORITHM_RING = 5,
    BRV_ALGORITHM_DOUBLING = 6,
    BRV_ALGORITHM_HALVING = 7,
    BRV_ALGORITHM_DIRECT = 8,
    BRV_ALGORITHM_BRUCK = 9,
    BRV_ALGORITHM_PAIRWISE = 10,
    BRV_ALGORITHM_LINEAR = 11,
    BRV_ALGORITHM_SPREAD = 12,
    BRV_ALGORITHM_HOSTS = 13,
    BRV_ALGORITHM_SLOTS = 14, /* over the memory that all ranks share */
    BRV_ALGORITHM_MAX = BRV_ENUM_MAX
} brv_algorithm;

/* What one call does differently. Set it with BRV_OPTIONS_INIT. Nothing of it is kept. */
typedef struct brv_options {
    uint32_t size; /* sizeof(brv_options) */

    /* How a dense collective or brv_topk_all_reduce is carried out: a brv_algorithm, the same on all ranks; 0
     * for the library's choice. Other calls refuse it. */
    uint32_t algorithm;

    /* Seconds that the call may take instead of the group's timeout: above 0, INFINITY for no limit; 0 for
     * the group's. Ranks may have different ones. */
    double timeout;

    /* A name for the texts of errors, such as that of a tensor: UTF-8, at most 255 bytes; may be NULL. */
    const char *name;

    uint64_t reserved[5];
} brv_options;

#define BRV_OPTIONS_INIT {sizeof(brv_options), 0, 0.0, NULL, {0, 0, 0, 0, 0}}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* This process's rank, from 0; -1 if group is NULL. */
int32_t brv_group_rank(const brv_group *group);

/* Ranks in the group, 1 or more; -1 if group is NULL. */
int32_t brv_group_size(const brv_group *group);

/* The name of the transport in use, for example "tcp"; "" if group is NULL. Never NULL, valid until the group
 * is freed. */
const char *brv_group_transport(const brv_group *group);

/* The number in the world of rank `rank` of the group; -1 if the group has no such rank, or is NULL. */
int32_t brv_group_world_rank(const brv_group *group, int32_t rank);

/* BRV_OK while the group is open, else the error that has closed it, with its text and rank: the one that
 * later calls fail with, so after a timeout BRV_ERR_ABORTED with the rank whose call has timed out. Also
 * finds what came up outside a call: a rank that has died, or aborted. Turns the transport once; does not
 * wait. */
brv_status brv_group_status(brv_group *group);

/* Sets how many seconds later calls on the group may take, instead of BREVITY_TIMEOUT: above 0, as 30 or 0.5;
 * INFINITY for no limit.
 * Groups that are made of this one later begin with BREVITY_TIMEOUT again. Ranks may have different timeouts:
 * the first that passes closes the group. Sends nothing. May be called while another thread is in a call on
 * the group, which keeps its own. */
brv_status brv_group_set_timeout(brv_group *group, double seconds);

/* Receives one setting. Both strings are valid during the call only. */
typedef void (*brv_setting_function)(const char *name, const char *value, void *user_data);

/* Calls a function for each setting that is in force for the group, such as "transport" with "tcp" and
 * "timeout" with "300" (seconds). Names may be added. Sends nothing. */
brv_status brv_group_settings(const brv_group *group, brv_setting_function function, void *user_data);

/* What this rank has sent and received in all its groups of the job, since it has joined. */
typedef struct brv_statistics {
    uint64_t size;              /* sizeof(brv_statistics) */
    uint64_t messages_sent;
    uint64_t bytes_sent;        /* handed to the network, with headers */
    uint64_t messages_received;
    uint64_t bytes_received;
    uint64_t copies;            /* of data, within this process */
    uint64_t bytes_copied;
    uint64_t bytes_shared;      /* through memory that ranks of this host share, in this group only */
    uint64_t reserved[8];
} brv_statistics;

#define BRV_STATISTICS_INIT {sizeof(brv_statistics), 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0}}

/* Stores the counters in *statistics, which must have been initialised. Sends nothing. */
brv_status brv_group_statistics(const brv_group *group, brv_statistics *statistics);

/* The colour of a rank that gets no group. */
#define BRV_NO_COLOUR (-1)

/* Splits the group: the ranks of each colour get a new group, numbered in the order of their keys, and of
 * their ranks where keys are equal. Stores it in *part; NULL for BRV_NO_COLOUR, and after a failure. The
 * group itself stays as it is.
 *
 * All ranks of the group call this; colours (0 or more) and keys (any) may differ. Blocks for two short
 * all-gathers. The new group must be freed like any other; it may outlive the group that it was made of.
 *
 * BRV_ERR_ARGUMENT, also for other negative colours; BRV_ERR_EXHAUSTED; otherwise errors are as for
 * brv_barrier. */
brv_status brv_group_split(brv_group *group, int32_t colour, int32_t key, brv_group **part,
                           const brv_options *options);

/* Makes another group of the same ranks, for calls that are independent of those on this one: a library that
 * uses it does not disturb its caller, and two threads may each have their own. Stores it in *duplicate.
 * Errors are as for brv_group_split. */
brv_status brv_group_duplicate(brv_group *group, brv_group **duplicate, const brv_options *options);

/* Makes a group of the ranks that are left of this one, which a death, a timeout, an abort or a mismatch has
 * closed; an open group is closed first. All ranks that are left call this, each after its error. Stores it
 * in *left; NULL after a failure. The ranks keep their order; the old group must still be freed.
 *
 * A rank that does not answer within the group's timeout, or that of the options, is out, and gets
 * BRV_ERR_EXCLUDED when it calls this. Only more than half of the ranks go on, or half of them with the
 * lowest one among them, so that a network that is cut never leaves two groups: others get
 * BRV_ERR_NO_MAJORITY, and may call this again when more can be reached; but not of a group that has grown.
 *
 * BRV_ERR_ARGUMENT, BRV_ERR_EXCLUDED, BRV_ERR_NO_MAJORITY, BRV_ERR_EXHAUSTED as of brv_group_split. */
brv_status brv_group_shrink(brv_group *group, brv_group **left, const brv_options *options);

/* As brv_group_shrink, for as few ranks as are left. If the network is cut, each side makes a group of its
 * own. */
brv_status brv_group_shrink_any(brv_group *group, brv_group **left, const brv_options *options);

/* Makes a group of this one's ranks and of those lost ranks of the job that come back within wait seconds;
 * ends as soon as all are there. All ranks that are left call this, on an open group of them all, which has
 * shrunk as a rule; only the wait of the lowest rank counts (0 looks once, INFINITY is no limit). Stores it
 * in *grown; NULL after a failure. If nobody comes, it is another handle of the same group.
 *
 * Ranks that come back are new processes with the rank, world size, key and name of the lost ones, and an
 * incarnation (see brv_config): `brevity run --restart` starts them so. Their brv_group_join ends when they
 * are taken back. They meet the lowest rank of this group at the place of return. A lost rank whose process
 * is still there is not waited for.
 *
 * The new group has connections and memory of its own, and its ranks are in the order that they had when the
 * job began. It may be closed already, if a rank is lost at once: shrink it as after any loss. Either all
 * ranks that are left get it, or none does, whoever is lost meanwhile. The old group must still be freed; its
 * connections close when all that was made of it is.
 *
 * BRV_ERR_ARGUMENT; BRV_ERR_TRANSPORT if the lowest rank can't listen: the group is as before;
 * BRV_ERR_NO_MAJORITY if too few ranks are left to know which group goes on: a majority of them may go on in
 * the new one, so end this process, or call brv_group_shrink_any if no other goes on. Otherwise errors are as
 * for brv_all_reduce, if another rank is lost meanwhile: call brv_group_shrink, and this again. */
brv_status brv_group_grow(brv_group *group, double wait, brv_group **grown, const brv_options *options);

/* 1 if a rank of the group has come back by the brv_group_grow that has made its connections, and so has no
 * state yet; 0 if not; -1 if the group has no such rank, or is NULL. The same on all ranks. */
int32_t brv_group_has_returned(const brv_group *group, int32_t rank);

/* The number that rank `rank` of the group had when the job began, by which its launcher knows it; -1 if the
 * group has no such rank, or is NULL. Another one than brv_group_world_rank after a brv_group_grow to which
 * some have not come. */
int32_t brv_group_first_rank(const brv_group *group, int32_t rank);

/* The number of ranks with which the job began, or -1 for NULL. All of them are there where it is the size of
 * the group. */
int32_t brv_group_first_size(const brv_group *group);

/* Makes the groups for calls in two levels. *local gets the ranks that share memory with this one; *leaders
 * gets the first rank of each host, on those ranks, and NULL on others. A rank that shares no memory with
 * another (see BREVITY_SHARED_MEMORY) is a host of its own. After a failure both are NULL. Errors are as for
 * brv_group_split. */
brv_status brv_group_hosts(brv_group *group, brv_group **local, brv_group **leaders,
                           const brv_options *options);

/* Closes the group on all ranks: pending and later calls fail on every rank with BRV_ERR_ABORTED naming this
 * rank; also in a group of one. Other groups go on. The group must still be freed. May be called while
 * another thread is in a call on the group.
 *
 * Async-signal-safe if group is not NULL: a signal handler may call it at any time, also while its thread is
 * in a call on the group. It takes no lock, allocates nothing, and sets no error text. In a forked child it
 * does nothing and returns BRV_ERR_ARGUMENT.
 *
 * The call that is using the group tells the peers when it goes on; if there is none, a thread of the group
 * tells them at once. This function waits for that, at most 100 ms, so that the caller may then exit. Not
 * promised: if a handler interrupted a call on the group, the peers may not have been told when this function
 * returns, and if the process ends before that call goes on, they are not told at all; they then find this
 * rank lost. Does not wait for any action of the peers. */
brv_status brv_group_abort(brv_group *group);

/* Frees a group; does nothing if group is NULL. The connections of a job stay until all its groups are freed,
 * and all exchanges, requests, regions of memory, and feedbacks that were used; the order does not matter.
 * Other ranks then find this rank lost: call brv_barrier before.
 *
 * If calls that were started on the group have not ended, also those whose requests were freed, the group is
 * aborted and this waits until their memory may be reused: usually microseconds, and up to 10 seconds if a
 * peer that has stopped is reading it. Their requests, if not freed, then say BRV_ERR_ABORTED. May not be
 * called in a callback while there are such calls: the group is then aborted, and freed with its last
 * request. A function of brv_request_on_end may still run on another thread, or be about to: if it uses the
 * group, wait for it before, by freeing its request or by a sign of your own.
 *
 * A process may exit without freeing, also while another thread is in a call on the group: that call fails or
 * does not return. */
void brv_group_free(brv_group *group);

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* A call that was started. It must be freed.
 *
 * It moves while a thread is in any call of this library on a group of the same job, in brv_group_progress,
 * or on a thread of the library's own if the job has one (progress_thread of brv_config). Its timeout counts
 * from its start. */
typedef struct brv_request brv_request;

/* Waits for ever, or until the timeout of the call. */
#define BRV_FOREVER (-1.0)

/* Moves the calls of the job once; in a callback none, because the thread around it is moving them. Returns
 * BRV_PENDING, or, when the call has ended, what its blocking form would have returned, with its text and
 * rank; again and again. */
brv_status brv_request_test(brv_request *request);

/* Waits at most `seconds` (0 or more), or until the call has ended if that is BRV_FOREVER: the call's own
 * timeout ends it. Returns as brv_request_test; BRV_PENDING when the time has passed: that closes nothing,
 * and the call goes on. */
brv_status brv_request_wait(brv_request *request, double seconds);

/* Waits until one of the requests has ended, and stores its index in *index: the lowest, if several have.
 * Returns its status. BRV_PENDING when the time has passed; *index is then count. Requests may be of several
 * groups and jobs. NULL stands for none: put it in place of one that was dealt with. BRV_ERR_ARGUMENT if all
 * are NULL. */
brv_status brv_request_wait_any(brv_request *const *requests, size_t count, double seconds, size_t *index);

/* Waits until all requests have ended; NULL stands for none. Returns BRV_OK, or the status of the first in
 * the list that failed, with its text and rank, when all have ended; or BRV_PENDING when the time has passed.
 * */
brv_status brv_request_wait_all(brv_request *const *requests, size_t count, double seconds);

/* Gives up a send, a receive or a probe, or a wait for a server; collectives go on, because other ranks need
 * them. A receive or probe that has found no message ends with BRV_ERR_CANCELED
 * and takes none; one whose message has begun to come goes on. Of a send the receiver gets the whole message
 * or nothing, perhaps later. Answers of a server can be pulled later. The request must still be waited for,
 * and freed. BRV_OK, also if it has ended. */
brv_status brv_request_cancel(brv_request *request);

/* Called once when a call has ended. */
typedef void (*brv_request_function)(brv_request *request, void *user_data);

/* Sets the function to call when the call ends. If it has ended already, it is called before this returns; in
 * a callback, after that has returned. It may test and free the request. BRV_ERR_ARGUMENT if one was set
 * before. */
brv_status brv_request_on_end(brv_request *request, brv_request_function function, void *user_data);

/* Frees a request; does nothing if request is NULL. A call that has not ended goes on, except for receives
 * and probes, which are canceled; its memory stays lent until the group is freed. Its function is not called
 * any more: if that is running on another thread, this waits for it, except in a callback. */
void brv_request_free(brv_request *request);

/* Moves the started calls of the job once. BRV_OK if something has moved, BRV_PENDING if not. */
brv_status brv_group_progress(brv_group *group);

/* For an event loop of the program's own: moves the started calls of the job once, and prepares for sleeping.
 *
 * BRV_OK: nothing has moved. Watch *descriptor for reading (poll, epoll), together with the program's own, at
 * most for *milliseconds; then test the requests, and come back. The descriptor stays the same as long as the
 * job; do not read or close it. BRV_PENDING: something has moved: test the requests, and call this again
 * before sleeping.
 *
 * The wake-up is promised only until a call is made on a group of the job, a test too: so sleep first. While
 * no request is pending there is nothing to wait for: *milliseconds is then -1.
 *
 * The descriptor is that of the job, and one event loop at a time may sleep on it: each call here, by any
 * thread and on any group of the job, takes over the wake-up. A second loop moves its requests by
 * brv_request_test at times of its own, or waits for them on a thread; or the two use two jobs. */
brv_status brv_group_prepare_sleep(brv_group *group, int *descriptor, int *milliseconds);

/* ---- Dense collectives --------------------------------------------------------------------------------- */

/* Element types. */
typedef enum brv_type {
    BRV_F32 = 1,    /* float */
    BRV_F64 = 2,    /* double */
    BRV_I32 = 3,    /* int32_t */
    BRV_I64 = 4,    /* int64_t */
    BRV_U32 = 5,    /* uint32_t */
    BRV_U64 = 6,    /* uint64_t */
    BRV_U8 = 7,     /* uint8_t */
    BRV_I8 = 8,     /* int8_t */
    BRV_I16 = 9,    /* int16_t */
    BRV_U16 = 10,   /* uint16_t */
    BRV_F16 = 11,   /* 16 bits, binary16 of IEEE 754; sums are computed in float and rounded once */
    BRV_BF16 = 12,  /* 16 bits, the upper half of a float; likewise */
    BRV_BOOL = 13,  /* a byte: 0 is false, any other value true */
    BRV_BYTES = 14, /* bytes without a meaning, of any number; no reduction of the library has them */
    BRV_TYPE_MAX = BRV_ENUM_MAX
} brv_type;

/* How the elements of all ranks are combined. Numbers from 256 on are the program's own:
 * brv_reduction_register. */
typedef enum brv_reduction {
    BRV_SUM = 1,     /* the sum of numbers; integers wrap */
    BRV_AVERAGE = 2, /* the sum divided by the number of ranks, once; floating-point numbers only */
    BRV_MAX = 3,     /* the largest number; NaN where any is NaN */
    BRV_MIN = 4,     /* the smallest number; NaN where any is NaN */
    BRV_PRODUCT = 5, /* the product of numbers; integers wrap */
    BRV_AND = 6,     /* of the bits of integers, or of BRV_BOOL */
    BRV_OR = 7,      /* likewise */
    BRV_XOR = 8,     /* likewise */
    BRV_REDUCTION_MAX = BRV_ENUM_MAX
} brv_reduction;

/* Collectives work on vectors of n elements, or on vectors with a block of n elements for each rank, in the
 * order of ranks: block i is rank i's. n, the type, the reduction and the root are the same on all ranks.
 * Functions with a v take a list instead of n: the lengths of the blocks, one for each rank of the group,
 * without gaps between the blocks. A list is only read during the call that it is passed to.
 *
 * Output need not be set before, and is unspecified after an error other than BRV_ERR_ARGUMENT. Input is
 * never changed, except in place.
 *
 * In place, a call finds its input where its output will be; each function says how its arguments ask for it.
 * That saves a copy. All memory of both then belongs to the call as output does. Any other overlap is
 * refused.
 *
 * Reductions give the same bits on every rank; NaN and infinity are reduced like other values. The order of
 * sums depends on the number of ranks only, so the bits of a result are the same with any algorithm, size and
 * transport: docs/algorithms.md.
 */

/* Each function with an i starts the call, stores its request in *request, and returns without waiting:
 * BRV_OK, or BRV_ERR_ARGUMENT or BRV_ERR_EXHAUSTED if nothing was started; *request is then NULL. Other
 * errors come from the request. */

/* From here on made from capi/tests/capi/list.rs. */

/* Waits until all ranks have called this. */
brv_status brv_barrier(brv_group *group, const brv_options *options);
brv_status brv_ibarrier(brv_group *group, brv_request **request, const brv_options *options);

/* Copies the n elements at data of rank root to all ranks. On the other ranks data need not be set before,
 * and is unspecified after an error. */
brv_status brv_broadcast(brv_group *group, void *data, size_t n, brv_type type, int32_t root,
                         const brv_options *options);
brv_status brv_ibroadcast(brv_group *group, void *data, size_t n, brv_type type, int32_t root,
                          brv_request **request, const brv_options *options);

/* Copies the n elements at in of rank root to out on every rank. in of other ranks is not looked at, and may
 * be NULL. In place: in == out, which saves the root's copy. */
brv_status brv_broadcast_to(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                            int32_t root, const brv_options *options);
brv_status brv_ibroadcast_to(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                             int32_t root, brv_request **request, const brv_options *options);

/* Reduces the n elements at in over all ranks, to out on rank root. out of other ranks is not looked at, and
 * may be NULL. In place: in == out; on other ranks than root the elements are then unspecified afterwards. */
brv_status brv_reduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                      brv_reduction reduction, int32_t root, const brv_options *options);
brv_status brv_ireduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                       brv_reduction reduction, int32_t root, brv_request **request,
                       const brv_options *options);

/* Reduces the n elements at in over all ranks, to out on every rank. In place: in == out.
 *
 * BRV_ERR_TRANSPORT if there is no memory for received data, also from other calls that reduce; a group of
 * one needs none. */
brv_status brv_all_reduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                          brv_reduction reduction, const brv_options *options);
brv_status brv_iall_reduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                           brv_reduction reduction, brv_request **request, const brv_options *options);

/* Reduces the blocks of n elements at in over all ranks, to n elements at out: each rank gets the block of
 * its own place. In place: out == in + rank * n; the other blocks are then unspecified afterwards. */
brv_status brv_reduce_scatter(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                              brv_reduction reduction, const brv_options *options);
brv_status brv_ireduce_scatter(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                               brv_reduction reduction, brv_request **request, const brv_options *options);

/* Like brv_reduce_scatter, with blocks of these lengths, the same list on all ranks; BRV_ERR_MISMATCH if
 * lists differ. In place: out is this rank's block of in. */
brv_status brv_reduce_scatter_v(brv_group *group, const void *in, void *out, const size_t *lengths,
                                brv_type type, brv_reduction reduction, const brv_options *options);
brv_status brv_ireduce_scatter_v(brv_group *group, const void *in, void *out, const size_t *lengths,
                                 brv_type type, brv_reduction reduction, brv_request **request,
                                 const brv_options *options);

/* Gathers the n elements at own of every rank: all gets a block of n elements of each. In place: own == all +
 * rank * n. */
brv_status brv_all_gather(brv_group *group, const void *own, void *all, size_t n, brv_type type,
                          const brv_options *options);
brv_status brv_iall_gather(brv_group *group, const void *own, void *all, size_t n, brv_type type,
                           brv_request **request, const brv_options *options);

/* Like brv_all_gather, with blocks of these lengths, the same list on all ranks; BRV_ERR_MISMATCH if lists
 * differ. In place: own is this rank's block of all. */
brv_status brv_all_gather_v(brv_group *group, const void *own, void *all, const size_t *lengths,
                            brv_type type, const brv_options *options);
brv_status brv_iall_gather_v(brv_group *group, const void *own, void *all, const size_t *lengths,
                             brv_type type, brv_request **request, const brv_options *options);

/* Gathers the n elements at own of every rank at rank root: its all gets a block of n elements of each. all
 * of other ranks is not looked at, and may be NULL. In place, at root: own == all + rank * n. */
brv_status brv_gather(brv_group *group, const void *own, void *all, size_t n, brv_type type, int32_t root,
                      const brv_options *options);
brv_status brv_igather(brv_group *group, const void *own, void *all, size_t n, brv_type type, int32_t root,
                       brv_request **request, const brv_options *options);

/* Like brv_gather, with blocks of these lengths. Of the list of another rank than root only its own length
 * counts; BRV_ERR_PROTOCOL if that is not what root expects. In place, at root: own is its block of all. */
brv_status brv_gather_v(brv_group *group, const void *own, void *all, const size_t *lengths, brv_type type,
                        int32_t root, const brv_options *options);
brv_status brv_igather_v(brv_group *group, const void *own, void *all, const size_t *lengths, brv_type type,
                         int32_t root, brv_request **request, const brv_options *options);

/* Gives every rank its block of all of rank root, which has n elements for each: n elements at own. all of
 * other ranks is not looked at, and may be NULL. In place, at root: own == all + rank * n. */
brv_status brv_scatter(brv_group *group, const void *all, void *own, size_t n, brv_type type, int32_t root,
                       const brv_options *options);
brv_status brv_iscatter(brv_group *group, const void *all, void *own, size_t n, brv_type type, int32_t root,
                        brv_request **request, const brv_options *options);

/* Like brv_scatter, with blocks of these lengths. Of the list of another rank than root only its own length
 * counts; BRV_ERR_PROTOCOL if that is not what root sends. In place, at root: own is its block of all. */
brv_status brv_scatter_v(brv_group *group, const void *all, void *own, const size_t *lengths, brv_type type,
                         int32_t root, const brv_options *options);
brv_status brv_iscatter_v(brv_group *group, const void *all, void *own, const size_t *lengths, brv_type type,
                          int32_t root, brv_request **request, const brv_options *options);

/* Sends a block of n elements to every rank, and receives one of each: block i of in goes to rank i, and
 * block i of out comes from it. In place: in == out. */
brv_status brv_all_to_all(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                          const brv_options *options);
brv_status brv_iall_to_all(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                           brv_request **request, const brv_options *options);

/* Like brv_all_to_all, with blocks of these lengths: of those that this rank sends, and of those that it
 * receives; BRV_ERR_PROTOCOL if the sender of a block has another length. In place: in == out, with two equal
 * lists. */
brv_status brv_all_to_all_v(brv_group *group, const void *in, void *out, const size_t *sent,
                            const size_t *received, brv_type type, const brv_options *options);
brv_status brv_iall_to_all_v(brv_group *group, const void *in, void *out, const size_t *sent,
                             const size_t *received, brv_type type, brv_request **request,
                             const brv_options *options);

/* Up to here made from the list. */

/* A reduction of the program's own: combines elements of two vectors of `bytes` bytes, from with into, and
 * leaves the results in into. Returns 0, or another number for a failure: the call then fails with
 * BRV_ERR_USER, and the group is closed on all ranks.
 *
 * It must be associative and commutative, up to rounding, and the same on all ranks. Bits are the same on all
 * ranks if swapping the two operands does not change those of the result. It is called for any parts of the
 * vectors, which are whole elements and do not overlap, on any thread, and by several at once; in the middle
 * of a call, so every function of this library is refused there with BRV_ERR_ARGUMENT, except brv_group_abort
 * in a signal handler. It must not throw or jump out. */
typedef int (*brv_reduce_function)(void *into, const void *from, size_t bytes, void *user_data);

/* Registers a reduction of elements of `type_size` bytes with the group, and stores its number in *reduction,
 * which is used as those of brv_reduction are. name is UTF-8 of 1 to 255 bytes, copied; ranks whose names
 * differ get BRV_ERR_MISMATCH. Sends nothing.
 *
 * Calls have a type whose elements have that size. For elements of any size it is BRV_BYTES: lengths are then
 * in bytes, and multiples of type_size. Parts of a vector are aligned as the vector is, to the largest power
 * of two that divides type_size and is at most 64.
 *
 * The function may be called until the reduction is unregistered, or the group freed, and all calls with it
 * have ended. Other groups do not know the number, also those that are made of this one. */
brv_status brv_reduction_register(brv_group *group, const char *name, size_t type_size,
                                  brv_reduce_function function, void *user_data, brv_reduction *reduction);

/* Forgets a reduction of the program. Its number is not used again; calls that have begun go on with it. */
brv_status brv_reduction_unregister(brv_group *group, brv_reduction reduction);

/* ---- Messages between two ranks ------------------------------------------------------------------------ */

/* Any rank, as a source; any tag. */
#define BRV_ANY (-1)

/* A message that was received, or that has come. */
typedef struct brv_message {
    int32_t source; /* the rank of the group that has sent it */
    int32_t tag;
    uint64_t bytes; /* its length */
} brv_message;

/* Sends the n elements at data to rank `to` of the group, which may be this rank. tag is 0 or more. Any rank
 * may send to any other beside the collectives. Messages of one sender and tag are received in their order.
 * Returns when the memory may be used again; the receiver may not have the message yet.
 *
 * Short messages do not wait for their receive while the receiver has credit for them (64 MiB from each rank
 * over sockets and shared memory, 1 MiB over UCX). Otherwise the message waits in the sender's memory.
 *
 * BRV_ERR_TIMEOUT closes nothing: the receiver gets the whole message or nothing, and may get it later: do
 * not send it again. Giving up a long message may take as long as copying it. Errors of a closed group
 * are as for brv_barrier. */
brv_status brv_send(brv_group *group, const void *data, size_t n, brv_type type, int32_t to, int32_t tag,
                    const brv_options *options);
brv_status brv_isend(brv_group *group, const void *data, size_t n, brv_type type, int32_t to, int32_t tag,
                     brv_request **request, const brv_options *options);

/* Sends a copy of the elements without waiting. BRV_PENDING, and nothing was sent, if rank `to` has not yet
 * taken what was sent so before, or if another thread is in this call for that rank. */
brv_status brv_try_send(brv_group *group, const void *data, size_t n, brv_type type, int32_t to, int32_t tag);

/* Receives a message of at most n elements into the beginning of data; the elements behind it are
 * unspecified. from and tag may be BRV_ANY; of several ranks that have sent, each has its turn. *message
 * tells which message it was; message may be NULL.
 *
 * BRV_ERR_TRUNCATED. BRV_ERR_TIMEOUT: no message was taken, and nothing is closed. After an error data is
 * unspecified. */
brv_status brv_recv(brv_group *group, void *data, size_t n, brv_type type, int32_t from, int32_t tag,
                    brv_message *message, const brv_options *options);
brv_status brv_irecv(brv_group *group, void *data, size_t n, brv_type type, int32_t from, int32_t tag,
                     brv_request **request, const brv_options *options);

/* Sends one message and receives another at the same time. message may be NULL. */
brv_status brv_send_recv(brv_group *group, const void *data, size_t n, int32_t to, int32_t tag, void *place,
                         size_t place_n, int32_t from, int32_t place_tag, brv_type type,
                         brv_message *message, const brv_options *options);

/* Waits for a message and leaves it where it is: *message says who has sent it, and how long it is. Receive
 * it with its source and tag. Another thread may take it before, and over UCX a sender that gives it up. */
brv_status brv_probe(brv_group *group, int32_t from, int32_t tag, brv_message *message,
                     const brv_options *options);
brv_status brv_iprobe(brv_group *group, int32_t from, int32_t tag, brv_request **request,
                      const brv_options *options);

/* Like brv_probe, without waiting: BRV_PENDING if there is no such message. */
brv_status brv_try_probe(brv_group *group, int32_t from, int32_t tag, brv_message *message);

/* The message of a receive or probe that has ended with BRV_OK. BRV_PENDING before; BRV_ERR_ARGUMENT for
 * other requests and after an error. */
brv_status brv_request_message(const brv_request *request, brv_message *message);

/* ---- Memory that peers read and write ------------------------------------------------------------------ */

/* Memory of this rank that peers put to and get from. */
typedef struct brv_memory brv_memory;

/* What a peer needs to know of it: send it in a message, as bytes. */
#define BRV_MEMORY_KEY_BYTES 1024
typedef struct brv_memory_key {
    uint32_t length; /* of the bytes that are used */
    uint8_t bytes[BRV_MEMORY_KEY_BYTES];
} brv_memory_key;

/* Registers the `bytes` bytes at start, which keep their values and must be set, and stores the region in
 * *memory and its key in *key. Until the region is freed only peers may write the memory, and this rank may
 * read it after a message from a peer that has flushed. Where UCX lets peers access it directly, its pages
 * become resident, which takes time: register long-lived memory, once.
 *
 * BRV_ERR_ARGUMENT, BRV_ERR_TRANSPORT if it can't be registered. */
brv_status brv_memory_register(brv_group *group, void *start, size_t bytes, brv_memory **memory,
                               brv_memory_key *key);

/* Ends all access and frees the region. BRV_OK: the memory may be freed or reused. BRV_PENDING: peers or
 * their hardware can still access it, over UCX, and can't be stopped: leave the memory as it is until the
 * process ends. BRV_OK for NULL. */
brv_status brv_memory_free(brv_memory *memory);

/* A region of a peer that this rank has opened. */
typedef struct brv_remote_memory brv_remote_memory;

/* Opens the region of rank `owner` of the group, which may be this rank, with this key. Does not contact the
 * peer. BRV_ERR_PROTOCOL if the bytes are no key of its memory. */
brv_status brv_remote_memory_open(brv_group *group, int32_t owner, const brv_memory_key *key,
                                  brv_remote_memory **memory);

/* Closes it; does nothing if memory is NULL. */
void brv_remote_memory_free(brv_remote_memory *memory);

/* Writes the bytes at data to a peer's memory from byte `offset` on. Returns when data may be used again:
 * only brv_flush says that the bytes have reached the peer's memory. Puts are not ordered. The peer must make
 * progress (be in a call) where the transport is "tcp". If the memory is this rank's own, this is a copy, and
 * data must lie outside of it, also for brv_get.
 *
 * BRV_ERR_ARGUMENT if the range is not inside the region. BRV_ERR_TRANSPORT if it is no longer registered.
 * BRV_ERR_TIMEOUT closes nothing; the bytes may still arrive. Over UCX, an operation that has begun is waited
 * for, also after its timeout: its memory is in use. Where the owner carries it out, that lasts until the
 * owner is in a call, or is lost. */
brv_status brv_put(brv_group *group, const void *data, size_t bytes, brv_remote_memory *to, size_t offset,
                   const brv_options *options);

/* Reads bytes from a peer's memory from byte `offset` on. Errors are as for brv_put. */
brv_status brv_get(brv_group *group, void *data, size_t bytes, brv_remote_memory *from, size_t offset,
                   const brv_options *options);

/* Waits until all earlier puts of this rank to rank `to` have reached its memory: a message that is sent
 * afterwards finds them there. */
brv_status brv_flush(brv_group *group, int32_t to, const brv_options *options);

/* ---- Compressed averages with error feedback ----------------------------------------------------------- */

/* The residual of one tensor (the part of its gradients that has not been delivered yet) and what the method
 * keeps between steps.
 *
 * A program keeps one for each tensor as long as it trains. The first call, or loading, fixes its group,
 * method and n, or rows, cols and rank. A later call that differs is refused with BRV_ERR_ARGUMENT. Ranks use
 * their feedbacks in the same order for the first time; later, a rank that uses another one than the others
 * gets BRV_ERR_MISMATCH. */
typedef struct brv_feedback brv_feedback;

/* Makes an empty feedback and stores it in *feedback. On failure *feedback is NULL. */
brv_status brv_feedback_new(brv_feedback **feedback);

/* Frees a feedback and its residual; does nothing if feedback is NULL. */
void brv_feedback_free(brv_feedback *feedback);

/* Copies the residual to the n elements at out, which need not be set before. n is the tensor's length.
 * BRV_ERR_ARGUMENT if n differs, or if the feedback has not been used yet. Sends nothing. */
brv_status brv_feedback_residual(const brv_feedback *feedback, float *out, size_t n);

/* Stores in *bytes how many bytes brv_feedback_save writes: a few hundred, plus 4 for each element of the
 * tensor, plus 4 for each element of the right factor of low rank. It is constant for a feedback.
 * BRV_ERR_ARGUMENT if the feedback has not been used yet. Sends nothing. */
brv_status brv_feedback_saved_size(const brv_feedback *feedback, size_t *bytes);

/* Writes all that this rank needs after a restart to the bytes at out, which need not be set before: what the
 * feedback is for, its residual, and the warm start of low rank. Keep it in a file. Each
 * rank saves its own, all after the same step. bytes is the result of brv_feedback_saved_size;
 * BRV_ERR_ARGUMENT if it differs, or if the feedback has not been used yet. Changes and sends nothing. */
brv_status brv_feedback_save(const brv_feedback *feedback, void *out, size_t bytes);

/* Loads what brv_feedback_save wrote on this rank, for use with group. All later results have the same bits
 * as without the restart. The feedback is new, or was used for the same; its old state is replaced. All ranks
 * must load what was saved after the same step.
 *
 * The number of ranks may be another one than when it was saved: what was not sent fits any group.
 *
 * BRV_ERR_ARGUMENT if the bytes are cut off, damaged or followed by others, or belong to another rank, method
 * or shape: nothing has changed then. Checksums find damage; they do not protect against forgery. Sends
 * nothing. */
brv_status brv_feedback_load(brv_feedback *feedback, brv_group *group, const void *saved, size_t bytes);

/* Like brv_feedback_load, but for what rank `rank` saved: its number in the group that it used the feedback
 * with. For a job with other ranks than before. What was not sent may go on in any rank, once: if exactly one
 * rank loads each saved state, or takes it over, nothing is lost. */
brv_status brv_feedback_load_of(brv_feedback *feedback, brv_group *group, int32_t rank, const void *saved,
                                size_t bytes);

/* Adds what rank `rank` saved of its residual to that of the feedback, for a job with fewer ranks: of Q
 * ranks, rank q loads what rank q saved, then takes over the states of the ranks q + Q, q + 2 Q and so on. So
 * nothing is lost, and nothing counts twice. Each sum is rounded once. All else stays as it is: the number of
 * steps, the density, the warm start of low rank.
 *
 * The state was saved after as many steps as the feedback has made; one that has made none, or is new, takes
 * over any. BRV_ERR_ARGUMENT if it was not, and as for brv_feedback_load; BRV_ERR_NON_FINITE if a sum is not
 * finite: let another rank take it over. Nothing has changed then. Sends nothing. */
brv_status brv_feedback_take_over(brv_feedback *feedback, brv_group *group, int32_t rank, const void *saved,
                                  size_t bytes);

/* Moves the feedback to another group, with its residual: when a rank is lost, the others go on in a group
 * without it. All ranks of that group move theirs, in the same order, or use a new feedback; low rank starts
 * anew from its seed, because the ranks may be a step apart. Does nothing to a feedback that has not been
 * used yet. Sends nothing.
 *
 * The group without the lost rank comes from brv_group_shrink, or was made before, with brv_group_split; or
 * the ranks join a new job (brv_group_join, with the variables of that job). */
brv_status brv_feedback_rejoin(brv_feedback *feedback, brv_group *group);

/* Averages the n elements at gradient over all ranks by gTop-k, in place (Shi et al., ICDCS 2019).
 *
 * The input is gradient plus the residual. The result is the same on every rank: the largest density * n
 * entries (at least one) of the sum of every rank's largest entries, divided by the number of ranks P, and 0
 * elsewhere. The rest stays in the residuals: the result times P and the residuals of all ranks add up to the
 * input, up to rounding. Costs 2 ceil(log2 P) rounds of at most 8 * density * n bytes.
 *
 * density is above 0 and at most 1, and the same on all ranks. It may change from call to call (as in a
 * warm-up); the residual is kept. feedback must not be NULL: without it, unsent entries would be lost.
 *
 * After an error gradient is unchanged. After BRV_ERR_ARGUMENT the residual is unchanged too. After
 * BRV_ERR_NON_FINITE the residual is restored up to one rounding: the part of an element that is below half a
 * unit in the last place of the value that was handed in for it is lost. After every other error gradient has
 * been added to the residual: do not hand it in again.
 *
 * While a started call has not ended, the feedback is in use: other calls with it get BRV_ERR_ARGUMENT. It
 * may be freed then, and goes with the call. */
brv_status brv_gtopk_average(brv_group *group, brv_feedback *feedback, float *gradient, size_t n,
                             double density, const brv_options *options);
brv_status brv_igtopk_average(brv_group *group, brv_feedback *feedback, float *gradient, size_t n,
                              double density, brv_request **request, const brv_options *options);

/* Averages the row-major matrix at gradient over all ranks by factors of the given rank, in place (PowerSGD:
 * Vogels et al., NeurIPS 2019).
 *
 * The input is gradient plus the residual; the result is an approximation of the average, the same on every
 * rank. What a rank's own projection misses stays in its residual. A matrix that factors would not shrink to
 * a half or less is averaged dense and leaves nothing in the residual. Costs two dense all-reduces, of rows *
 * rank and cols * rank elements.
 *
 * rank is 1 or more, usually 1 to 8. feedback must not be NULL. Errors are as for brv_gtopk_average. */
brv_status brv_low_rank_average(brv_group *group, brv_feedback *feedback, float *gradient, size_t rows,
                                size_t cols, uint32_t rank, const brv_options *options);
brv_status brv_ilow_rank_average(brv_group *group, brv_feedback *feedback, float *gradient, size_t rows,
                                 size_t cols, uint32_t rank, brv_request **request,
                                 const brv_options *options);

/* ---- The gradients of a whole model -------------------------------------------------------------------- */

/* A list of tensors whose gradients are averaged in one call, each by its own method, and their residuals.
 *
 * All ranks make their exchanges of a group in the same order, add the same tensors in the same order and
 * make the same calls. The first call other than adding ends the list. Like a feedback, an exchange is used
 * by one thread at a time. */
typedef struct brv_exchange brv_exchange;

/* Makes an exchange without tensors, for use with group, and stores it in *exchange. On failure *exchange is
 * NULL. */
brv_status brv_exchange_new(brv_group *group, brv_exchange **exchange);

/* Frees an exchange and its residuals; does nothing if exchange is NULL. */
void brv_exchange_free(brv_exchange *exchange);

/* How the gradients of one tensor travel. */
typedef enum brv_method {
    BRV_DENSE = 1,   /* all of it, uncompressed */
    BRV_TOPK = 2,    /* every rank's largest density * n entries (at least one), gathered by all */
    BRV_GTOPK = 3,   /* as in brv_gtopk_average */
    BRV_LOW_RANK = 4, /* as in brv_low_rank_average, of the first dimension by the product of the others;
                         vectors, and matrices that would not shrink enough, travel dense */
    BRV_QUANTISED = 5, /* every element, rounded to values; what rounding takes away stays in residuals.
                          BRV_VALUES_ONE_BIT_MIN and BRV_VALUES_TWO_BIT_MIN are refused: residuals would grow
                          without bound */
    BRV_SIGNUM = 6, /* the majority of all ranks' signs of their momentum: 1, -1, or 0 for a tie, no mean. No
                       residual; a failed step leaves the momentum as it was. Bernstein et al., ICLR 2019 */
    BRV_OK_TOPK = 7, /* about the largest density * n entries of the sum over all ranks, half to twice as
                        many; a rank sends at most about four times its share, however many ranks there are.
                        Li and Hoefler, PPoPP 2022 */
    BRV_RANDOM_K = 8, /* density * n entries at places that all ranks draw alike, by the seed and the step:
                         only values travel, by a dense all-reduce. Vogels et al., NeurIPS 2019 */
    BRV_RANDOM_BLOCK = 9, /* likewise, at consecutive places */
    BRV_BLOCK = 10, /* every rank's blocks of 256 elements that have the largest norms: a share density of the
                       blocks, at least one. Fei et al., SIGCOMM 2021 (OmniReduce) */
    BRV_UNBIASED_LOW_RANK = 11, /* a random projection to so many columns, another one in each step, whose
                                   mean is the average; no residual but after a failure */
    BRV_BEST_LOW_RANK = 12, /* each rank's best factors, gathered by all, with error feedback: slow */
    BRV_ATOMO = 13, /* each rank's singular components, sampled without bias, at most rank of them, gathered
                       by all: slow, and no residual but after a failure. Wang et al., NeurIPS 2018. This and
                       BRV_BEST_LOW_RANK: BRV_ERR_UNSUPPORTED in a library without the feature svd */
    BRV_SIGN_NORM = 14, /* every sign times the mean magnitude, gathered by all, with error feedback.
                           Karimireddy et al., ICML 2019 */
    BRV_EXCLUDED = 15, /* nothing: each rank keeps its own gradient as it is */
    BRV_METHOD_MAX = BRV_ENUM_MAX
} brv_method;

/* Which part of a rank's contribution to gTop-k returns to which residual. */
typedef enum brv_put_back {
    BRV_PUT_BACK_CONSERVING = 0,   /* nothing is lost, and residuals stay with the ranks of their gradients */
    BRV_PUT_BACK_PUBLISHED = 1,    /* the rule of the paper, by which a part is lost */
    BRV_PUT_BACK_MERGER_KEEPS = 2, /* nothing is lost; residuals gather at ranks that merge */
    BRV_PUT_BACK_MAX = BRV_ENUM_MAX
} brv_put_back;

/* How values of sparse and quantised messages are written; the mean or the smallest magnitude stands for
 * several. What rounding takes away stays in the residual. */
typedef enum brv_values {
    BRV_VALUES_F32 = 0, /* exact; entries of a policy are pairs or packed, as is estimated to be faster,
                           those of calls on sparse vectors are pairs */
    BRV_VALUES_F16 = 1,
    BRV_VALUES_BF16 = 2,
    BRV_VALUES_ONE_BIT_MEAN = 3,
    BRV_VALUES_ONE_BIT_MIN = 4,
    BRV_VALUES_TWO_BIT_MEAN = 5,
    BRV_VALUES_TWO_BIT_MIN = 6,
    BRV_VALUES_EIGHT_BIT = 7,
    /* Exact too, of entries only: with packed indices; as pairs of an index and a value, 8 bytes. */
    BRV_VALUES_F32_PACKED = 8,
    /* -1, 0 or 1 at random, times half of the largest magnitude, to which values are clipped. Wen et al.,
     * NeurIPS 2017 (TernGrad), with other clipping, so that residuals stay bounded */
    BRV_VALUES_TERNARY = 9,
    BRV_VALUES_QSGD_4_BIT = 10, /* BRV_VALUES_QSGD(7) */
    BRV_VALUES_QSGD_8_BIT = 11, /* BRV_VALUES_QSGD(127) */
    /* The sign, times the mean magnitude of the element's column. In a policy the columns are those of the
     * tensor's matrix, as in BRV_LOW_RANK, elsewhere there is one: see BRV_VALUES_COLUMNS. */
    BRV_VALUES_ONE_BIT_COLUMNS = 12,
    BRV_VALUES_PAIRS = 16,
    BRV_VALUES_MAX = BRV_ENUM_MAX
} brv_values;

/* One of so many levels, 2 to 127, of the largest magnitude of 512 values, at random: 4 bits up to 7 levels,
 * else 8. Alistarh et al., NeurIPS 2017, with error feedback. Random rounding is seeded by the values: the
 * same ones give the same bytes. */
#define BRV_VALUES_QSGD(levels) ((brv_values)(0x1000 + (levels)))

/* BRV_VALUES_ONE_BIT_COLUMNS with so many columns, 1 to 2^30 - 1: element i is in column i % columns, and a
 * message has 4 bytes a column. */
#define BRV_VALUES_COLUMNS(columns) ((brv_values)(0x40000000 + (columns)))

/* Momentum before a sparse selection. The optimiser must not apply momentum again. */
typedef enum brv_momentum {
    BRV_MOMENTUM_NONE = 0,
    BRV_MOMENTUM_CORRECTED = 1, /* Lin et al., ICLR 2018 (DGC): takes 4 bytes an element more */
    BRV_MOMENTUM_NESTEROV = 2,  /* likewise, in Nesterov's form */
    BRV_MOMENTUM_AWARE = 3,     /* Yan et al., ICPP 2020 (SAMomentum), with a momentum above 0 */
    BRV_MOMENTUM_MAX = BRV_ENUM_MAX
} brv_momentum;

/* The magnitude that an entry must reach for a rank to select it, of each tensor by itself. */
typedef enum brv_selection {
    BRV_SELECTION_DEFAULT = 0,  /* adaptive for BRV_OK_TOPK, exact for others */
    BRV_SELECTION_EXACT = 1,    /* exactly density * n entries */
    BRV_SELECTION_SAMPLED = 2,  /* from a sample: about as many. Aji and Heafield, EMNLP 2017 */
    BRV_SELECTION_ADAPTIVE = 3, /* that of an earlier step: at least half as many */
    BRV_SELECTION_FIXED = 4,    /* policy.threshold: as many at most */
    BRV_SELECTION_MAX = BRV_ENUM_MAX
} brv_selection;

/* A method with its parameters. Set it with one of the macros below; fields that a method does not use are
 * ignored. "Sparse" are BRV_TOPK, BRV_GTOPK, BRV_OK_TOPK, BRV_RANDOM_K, BRV_RANDOM_BLOCK and BRV_BLOCK; "low
 * rank" are BRV_LOW_RANK, BRV_UNBIASED_LOW_RANK, BRV_BEST_LOW_RANK and BRV_ATOMO. */
typedef struct brv_policy {
    uint32_t size; /* sizeof(brv_policy) */
    brv_method method;
    double density;             /* above 0 and at most 1: sparse */
    uint32_t rank;              /* 1 or more: low rank */
    brv_put_back put_back;      /* BRV_GTOPK */
    double min_compression;     /* low rank: a matrix that shrinks by less travels dense; 0 for 2 */
    uint32_t values;            /* brv_values: BRV_TOPK, BRV_GTOPK, BRV_OK_TOPK, BRV_QUANTISED */
    brv_momentum momentum_rule; /* sparse */
    double momentum;            /* at least 0 and below 1: BRV_SIGNUM, and with a momentum_rule */
    double clip;                /* sparse: each gradient to this norm over sqrt(ranks); 0: not */
    brv_selection selection;    /* BRV_TOPK, BRV_GTOPK, BRV_OK_TOPK */
    uint32_t unused;            /* 0 */
    double threshold;           /* above 0: with BRV_SELECTION_FIXED */
    double post_momentum;       /* low rank, below 1; 0 for none: momentum of the averages. With the average a
                                   of a step, m = post_momentum * m + a, and the result is a + m; it has the
                                   same bits on all ranks. The optimiser must not apply momentum again.
                                   Vogels et al., NeurIPS 2019, algorithm 2 */
    uint64_t reserved[2];
} brv_policy;

#define BRV_POLICY_INIT_ALL(method, density, rank, values, momentum) \
    {sizeof(brv_policy), method, density, rank, BRV_PUT_BACK_CONSERVING, 0.0, values, BRV_MOMENTUM_NONE, \
     momentum, 0.0, BRV_SELECTION_DEFAULT, 0, 0.0, 0.0, {0, 0}}
#define BRV_POLICY_INIT(method, density, rank) \
    BRV_POLICY_INIT_ALL(method, density, rank, BRV_VALUES_F32, 0.0)
#define BRV_POLICY_DENSE BRV_POLICY_INIT(BRV_DENSE, 0.0, 0)
#define BRV_POLICY_TOPK(density) BRV_POLICY_INIT(BRV_TOPK, density, 0)
#define BRV_POLICY_GTOPK(density) BRV_POLICY_INIT(BRV_GTOPK, density, 0)
#define BRV_POLICY_LOW_RANK(rank) BRV_POLICY_INIT(BRV_LOW_RANK, 0.0, rank)
#define BRV_POLICY_QUANTISED(values) BRV_POLICY_INIT_ALL(BRV_QUANTISED, 0.0, 0, values, 0.0)
#define BRV_POLICY_SIGNUM(momentum) BRV_POLICY_INIT_ALL(BRV_SIGNUM, 0.0, 0, BRV_VALUES_F32, momentum)
#define BRV_POLICY_OK_TOPK(density) BRV_POLICY_INIT(BRV_OK_TOPK, density, 0)
#define BRV_POLICY_RANDOM_K(density) BRV_POLICY_INIT(BRV_RANDOM_K, density, 0)
#define BRV_POLICY_RANDOM_BLOCK(density) BRV_POLICY_INIT(BRV_RANDOM_BLOCK, density, 0)
#define BRV_POLICY_BLOCK(density) BRV_POLICY_INIT(BRV_BLOCK, density, 0)
#define BRV_POLICY_UNBIASED_LOW_RANK(rank) BRV_POLICY_INIT(BRV_UNBIASED_LOW_RANK, 0.0, rank)
#define BRV_POLICY_BEST_LOW_RANK(rank) BRV_POLICY_INIT(BRV_BEST_LOW_RANK, 0.0, rank)
#define BRV_POLICY_ATOMO(rank) BRV_POLICY_INIT(BRV_ATOMO, 0.0, rank)
#define BRV_POLICY_SIGN_NORM BRV_POLICY_INIT(BRV_SIGN_NORM, 0.0, 0)
#define BRV_POLICY_EXCLUDED BRV_POLICY_INIT(BRV_EXCLUDED, 0.0, 0)

/* Adds a tensor to the list: its name (UTF-8, unique in the list; copied), the lengths of its dimensions, and
 * how its gradients travel; NULL for dense.
 *
 *     size_t shape[] = {512, 1024};
 *     brv_policy policy = BRV_POLICY_LOW_RANK(4);
 *     brv_exchange_add(exchange, "layer1.weight", shape, 2, &policy);
 *
 * BRV_ERR_ARGUMENT if a value is out of range, if the name exists already, and if the list has ended;
 * BRV_ERR_UNSUPPORTED. Sends nothing; the first other call allocates the residuals, and fails with
 * BRV_ERR_EXHAUSTED without memory. */
brv_status brv_exchange_add(brv_exchange *exchange, const char *name, const size_t *shape, size_t dimensions,
                            const brv_policy *policy);

/* Like brv_exchange_add, with a policy as text, such as "gtopk:0.001,values=bf16", "low-rank:4" or "dense":
 * docs/compression.md lists all. For settings of a program that its users write. */
brv_status brv_exchange_add_text(brv_exchange *exchange, const char *name, const size_t *shape,
                                 size_t dimensions, const char *policy);

/* Likewise, with rules that give each tensor a policy: the first one whose conditions it meets decides. Rules
 * are separated by semicolons; each is conditions, an equals sign and a policy. Conditions are joined by &: a
 * name, where * stands for any characters and ? for one; dims<N and dims>N, of the number of dimensions;
 * size<N and size>N, of the number of elements.
 *
 *     "dims<2=dense; embed*=gtopk:0.001; *=low-rank:4"
 *
 * BRV_ERR_ARGUMENT also if no rule is for the tensor. */
brv_status brv_exchange_add_by_rules(brv_exchange *exchange, const char *name, const size_t *shape,
                                     size_t dimensions, const char *rules);

/* Averages the gradients of all tensors over all ranks, in place. gradients has one pointer for each tensor,
 * in the order of the list, each to separate memory; tensors is the number of pointers, which are copied.
 *
 * Errors are as for brv_gtopk_average, for all tensors together; the text names a tensor with a value that
 * is not finite. */
brv_status brv_exchange_average(brv_exchange *exchange, float *const *gradients, size_t tensors,
                                const brv_options *options);
brv_status brv_iexchange_average(brv_exchange *exchange, float *const *gradients, size_t tensors,
                                 brv_request **request, const brv_options *options);

/* How many entries are kept at first, while gradients change fast, and later. A period is a number of steps,
 * such as those of an epoch. */
typedef enum brv_warm_up {
    BRV_WARM_UP_NONE = 1,        /* the target in all periods */
    BRV_WARM_UP_EXPONENTIAL = 2, /* target^((e + 1) / (periods + 1)) in period e, from 0, while e < periods */
    BRV_WARM_UP_LINEAR = 3,      /* 1 - (1 - target) (e + 1) / (periods + 1), likewise */
    BRV_WARM_UP_LISTED = 4,      /* densities[e], likewise */
    BRV_WARM_UP_DGC = 5,   /* 0.25, 0.0625, 0.015625 and 0.004, then 0.001: Lin et al., ICLR 2018 */
    BRV_WARM_UP_GTOPK = 6, /* 0.25, 0.0725, 0.015 and 0.004, then 0.001: Shi et al., ICDCS 2019 */
    BRV_WARM_UP_GTOPK_RECURRENT = 7, /* likewise, then 0.005 */
    BRV_WARM_UP_MAX = BRV_ENUM_MAX
} brv_warm_up;

/* A density for each period. Set it with one of the macros below. */
typedef struct brv_schedule {
    uint32_t size;           /* sizeof(brv_schedule) */
    brv_warm_up warm_up;
    double target;           /* the density after the warm-up: above 0 and at most 1; not of the papers' */
    const double *densities; /* BRV_WARM_UP_LISTED: one for each of the periods; copied */
    size_t periods;          /* of the warm-up, at most 2^32 - 1 */
    uint64_t reserved[4];
} brv_schedule;

#define BRV_SCHEDULE_INIT(warm_up, target, densities, periods) \
    {sizeof(brv_schedule), warm_up, target, densities, periods, {0, 0, 0, 0}}
#define BRV_SCHEDULE_CONSTANT(density) BRV_SCHEDULE_INIT(BRV_WARM_UP_NONE, density, NULL, 0)
#define BRV_SCHEDULE_EXPONENTIAL(target, periods) \
    BRV_SCHEDULE_INIT(BRV_WARM_UP_EXPONENTIAL, target, NULL, periods)
#define BRV_SCHEDULE_LINEAR(target, periods) BRV_SCHEDULE_INIT(BRV_WARM_UP_LINEAR, target, NULL, periods)
#define BRV_SCHEDULE_LISTED(densities, periods, target) \
    BRV_SCHEDULE_INIT(BRV_WARM_UP_LISTED, target, densities, periods)
#define BRV_SCHEDULE_DGC BRV_SCHEDULE_INIT(BRV_WARM_UP_DGC, 0.0, NULL, 0)
#define BRV_SCHEDULE_GTOPK BRV_SCHEDULE_INIT(BRV_WARM_UP_GTOPK, 0.0, NULL, 0)
#define BRV_SCHEDULE_GTOPK_RECURRENT BRV_SCHEDULE_INIT(BRV_WARM_UP_GTOPK_RECURRENT, 0.0, NULL, 0)

/* Stores the density of a period, from 0, in *density: the same bits on every rank and platform. */
brv_status brv_schedule_density(const brv_schedule *schedule, uint64_t period, double *density);

/* Lets the density of all sparse tensors follow a schedule, whose periods have so many steps (0 counts as 1):
 * in each step the larger of a tensor's own density and that of the schedule. Dense first steps are
 * BRV_SCHEDULE_LISTED with densities of 1. All ranks set the same, before the first call with the exchange.
 * Sends nothing. */
brv_status brv_exchange_set_schedule(brv_exchange *exchange, const brv_schedule *schedule,
                                     uint64_t steps_in_period);

/* Stores in *steps how many steps the exchange has made: those that were done on all ranks. They are saved
 * and loaded. */
brv_status brv_exchange_steps(brv_exchange *exchange, uint64_t *steps);

/* Sets how many steps the exchange has made, and so its place in its schedule. After a failure ranks may be a
 * step apart: those that rejoin while the density changes, and those that are new, set the same number before
 * their next step. */
brv_status brv_exchange_set_steps(brv_exchange *exchange, uint64_t steps);

/* Sets the seed of all random numbers: places that are drawn, the beginning of factors, samples. All ranks
 * set the same, before the first call with the exchange; unless set it is the same number always. */
brv_status brv_exchange_set_seed(brv_exchange *exchange, uint64_t seed);

/* Sets how many bytes of gradients a bucket holds: tensors with equal policies, but for density, rank and
 * momentum, travel as one vector up to that size, from the last tensor on. Unless set, that is 25 MiB of
 * dense, quantised and signum tensors, and 128 MiB of sparse and low-rank ones; 0 gives each tensor a bucket
 * of its own, and so does a sparse policy with values of 8 bits and less. All ranks set the same, before the
 * first call with the exchange. Sends nothing. */
brv_status brv_exchange_set_bucket_bytes(brv_exchange *exchange, size_t bytes);

/* A step whose gradients are handed in one after the other, so that they travel while others are computed:
 *
 *     brv_exchange_begin(exchange);
 *     for (tensor = TENSORS; tensor-- > 0;) {
 *         backward(tensor, gradients[tensor]);
 *         brv_exchange_ready(exchange, tensor, gradients[tensor], lengths[tensor]);
 *     }
 *     brv_exchange_finish(exchange, gradients, TENSORS);
 *
 * ready copies the gradient of a tensor of the list, by its number from 0, and does not wait; the last one of
 * a bucket starts its messages. Ranks may hand in tensors in different orders. finish waits, and replaces all
 * gradients by their averages; what was not handed in before is so then. The gradients must still hold what
 * was handed in. All ranks do the same: a step and brv_exchange_average are different calls.
 *
 * Between begin and finish no other call on the exchange makes sense: BRV_ERR_ARGUMENT. Nor should there be
 * other collectives on its group, barriers among them, which would wait for the step; those of another group
 * go on. An exchange that is freed in the middle of a step aborts its group, unless all its messages have
 * started, because other ranks wait for it; brv_exchange_rejoin gives up the step, and aborts the old group.
 * Errors of finish are as for brv_exchange_average; BRV_ERR_ARGUMENT changes nothing. */
brv_status brv_exchange_begin(brv_exchange *exchange);
brv_status brv_exchange_ready(brv_exchange *exchange, size_t tensor, const float *gradient, size_t n);
brv_status brv_exchange_finish(brv_exchange *exchange, float *const *gradients, size_t tensors);

/* A rank that has no gradient, for instance because its data has ended before that of others, makes the same
 * call with nothing: step_empty where others call brv_exchange_average, or begin_empty, and zeros, where
 * others call begin. Its residuals are delivered as always, and it gets the same averages; the memory need
 * not be set. Averages are over all ranks, unless all have called average_over_participants before the first
 * call with the exchange: then they are over the ranks that have a gradient, which costs an all-reduce of 4
 * bytes. Excluded tensors stay as they are. BRV_ERR_ARGUMENT changes nothing. */
brv_status brv_exchange_average_over_participants(brv_exchange *exchange);
brv_status brv_exchange_step_empty(brv_exchange *exchange, float *const *averages, size_t tensors,
                                   const brv_options *options);
brv_status brv_exchange_begin_empty(brv_exchange *exchange);

/* What one bucket of a step took on this rank, in seconds, and what it moved, without headers. */
typedef struct brv_bucket_report {
    uint64_t size;         /* sizeof(brv_bucket_report) */
    uint64_t tensors;      /* how many it has */
    uint64_t first_tensor; /* the number of the first of them */
    double select;         /* adding to the residuals, and selecting or projecting */
    double communicate;    /* from the start of its messages to the end, with waiting for slower ranks */
    double wait;           /* how much of that finish waited for */
    double apply;          /* writing averages, and what comes back to the residuals */
    uint64_t bytes_sent;     /* of messages */
    uint64_t bytes_received; /* likewise */
    uint64_t bytes_shared;   /* that it has written to memory that the ranks of its host share, for others */
    uint64_t reserved[2];
} brv_bucket_report;

#define BRV_BUCKET_REPORT_INIT {sizeof(brv_bucket_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0}}

/* Stores what a bucket of the last finished step took in *report, which must have been initialised. Buckets
 * are numbered from 0; BRV_ERR_ARGUMENT if there is no such bucket. Sends nothing. */
brv_status brv_exchange_report(brv_exchange *exchange, size_t bucket, brv_bucket_report *report);

/* Changes the density of the sparse tensor of that name from the next average on, for instance during
 * warm-up. All ranks call it before the same average. BRV_ERR_ARGUMENT for a density out of range, and if
 * there is no such tensor: nothing has changed then. Sends nothing. */
brv_status brv_exchange_set_density(brv_exchange *exchange, const char *name, double density);

/* Tells what was chosen for the tensor of that name, which has the policy "auto" (brv_exchange_add_text).
 * *policy points to the policy by which it travels, as text, such as "dense" or "gtopk:0.001"; *reason says
 * why, in one line with the estimates that were compared. Both are NULL for a tensor with another policy.
 * reason may be NULL. The texts are valid until the next such call for the tensor, or until exchange is
 * freed. They are the same on all ranks that have added the tensor so. No tensor can be added afterwards.
 * BRV_ERR_ARGUMENT if there is no such tensor. Sends nothing. */
brv_status brv_exchange_choice(brv_exchange *exchange, const char *name, const char **policy,
                               const char **reason);

/* Copies the residual of the tensor of that name to the n elements at out, which need not be set before. n is
 * the tensor's length. A dense tensor's residual is 0 except after a failure, that of BRV_SIGNUM always.
 * BRV_ERR_ARGUMENT if n differs, or if there is no such tensor. Sends nothing. */
brv_status brv_exchange_residual(brv_exchange *exchange, const char *name, float *out, size_t n);

/* Like brv_feedback_saved_size, brv_feedback_save, brv_feedback_load, brv_feedback_load_of and
 * brv_feedback_take_over, for all tensors of the list. The state must have been saved with the same list.
 * Densities may differ, and stay as they are. What momentum before selection keeps is added too; momenta
 * after aggregation, thresholds and draws, and the momentum of BRV_SIGNUM, stay. */
brv_status brv_exchange_saved_size(brv_exchange *exchange, size_t *bytes);
brv_status brv_exchange_save(brv_exchange *exchange, void *out, size_t bytes);
brv_status brv_exchange_load(brv_exchange *exchange, const void *saved, size_t bytes);
brv_status brv_exchange_load_of(brv_exchange *exchange, int32_t rank, const void *saved, size_t bytes);
brv_status brv_exchange_take_over(brv_exchange *exchange, int32_t rank, const void *saved, size_t bytes);

/* Like brv_feedback_rejoin, for all tensors of the list. */
brv_status brv_exchange_rejoin(brv_exchange *exchange, brv_group *group);

/* Lets ranks that are left of a loss agree on the last step: before the first call with the exchange, on all
 * ranks. Costs a barrier in each step. */
brv_status brv_exchange_keep_going(brv_exchange *exchange);

/* Goes on in the group of the ranks that are left (brv_group_shrink), which all call this, on an exchange
 * that keeps going. Afterwards all of them have delivered the last step, or none has. *delivered gets 1 on a
 * rank whose last step has failed although others have delivered it: the averages are those of that step
 * then, for the model. Otherwise it gets 0, the averages are unchanged, and a step that has failed is in the
 * residuals: don't hand it in again. averages are as for brv_exchange_average.
 *
 * BRV_ERR_ARGUMENT; errors of brv_all_reduce on the group, as the loss of another rank: nothing has changed,
 * and this can be called again with the next group. */
brv_status brv_exchange_go_on(brv_exchange *exchange, brv_group *group, float *const *averages,
                              size_t tensors, int32_t *delivered, const brv_options *options);

/* Gives all ranks of the group the model and the state of its rank from, and moves the exchange to the group:
 * for ranks that come back after a loss, and for new ones. All ranks call it with the same from: those that
 * have gone on with the exchange that they have, the others with one that they have just made on the group,
 * with the same list and settings. Of several exchanges, ranks share the states in the order in which the
 * others make them (brv_exchange_new).
 *
 * Afterwards the parameters have the bits of those of rank from. They are the tensors of the model, and of
 * what else must be equal: parameters has count pointers, each to separate memory of as many elements as
 * lengths says, all of one type; on all ranks as many, of the same lengths and type. count may be 0. They
 * must be set on rank from only. All exchanges have from's number of steps, densities and warm start of
 * low-rank tensors, projections of unbiased ones and momenta after aggregation, also where they had others;
 * thresholds and draws begin anew. What is a rank's own stays as it is: residuals, momentum before selection,
 * and that of BRV_SIGNUM. A new exchange has none. So nothing is lost, and nothing counts twice.
 * options.timeout is that of each of its collectives.
 *
 * BRV_ERR_ARGUMENT, also in the middle of a step and before brv_exchange_go_on: nothing was sent.
 * BRV_ERR_MISMATCH on all ranks if lists, settings, parameters or from differ: nothing has changed. Other
 * errors, as the loss of another rank: the exchange has not changed, and may go on in the next group.
 * Parameters may have parts of from's; where they were the same before, they are as they were. Other ranks
 * may have taken over model and state: in the next group all ranks call this again if any of them needs it,
 * with a from that has gone on, or for which this call has succeeded. */
brv_status brv_exchange_share_state(brv_exchange *exchange, brv_group *group, int32_t from,
                                    void *const *parameters, const size_t *lengths, size_t count,
                                    brv_type type, const brv_options *options);

/* The same calls for gradients of another type than float: type is BRV_F32, BRV_F64, BRV_F16 or BRV_BF16, and
 * every pointer is to elements of it. All gradients of a call have one type, and so have those that are
 * handed in of a step, and its averages; the steps of an exchange may have different ones. A call without a
 * type has BRV_F32.
 *
 * Residuals are float whatever the type, and so is what travels, unless a policy says otherwise. A gradient
 * is converted when it is added to them: a double beyond the range of float is not finite. An average is
 * rounded once, to the nearest number of the type, the largest finite one at most; what that takes away is
 * not kept. Ranks that pass different types get different roundings of the same averages.
 *
 * BRV_ERR_ARGUMENT for other types. */
brv_status brv_exchange_average_typed(brv_exchange *exchange, void *const *gradients, size_t tensors,
                                      brv_type type, const brv_options *options);
brv_status brv_iexchange_average_typed(brv_exchange *exchange, void *const *gradients, size_t tensors,
                                       brv_type type, brv_request **request, const brv_options *options);
brv_status brv_exchange_ready_typed(brv_exchange *exchange, size_t tensor, const void *gradient, size_t n,
                                    brv_type type);
brv_status brv_exchange_finish_typed(brv_exchange *exchange, void *const *gradients, size_t tensors,
                                     brv_type type);
brv_status brv_exchange_step_empty_typed(brv_exchange *exchange, void *const *averages, size_t tensors,
                                         brv_type type, const brv_options *options);
brv_status brv_exchange_go_on_typed(brv_exchange *exchange, brv_group *group, void *const *averages,
                                    size_t tensors, brv_type type, int32_t *delivered,
                                    const brv_options *options);

/* ---- Compressed collectives ---------------------------------------------------------------------------- */

/* The collectives that the averages above are made of, for programs that select entries and keep residuals
 * themselves. Sums are not divided.
 *
 * A sparse vector of this rank is passed as `count` entries: their indices, which rise strictly and are below
 * dim, the length of the dense vector (at most 2^32), and their values. dim, the format of values and what
 * each function names are the same on all ranks; the entries differ. A call that is started copies the
 * entries: their memory is free when it returns.
 *
 * format is how values travel, a brv_values: as pairs of index and value for BRV_VALUES_F32, otherwise with
 * packed indices.
 *
 * Sparse results go into objects of the library, because their lengths are only known at the end. The program
 * passes objects that it has made, and reads them when the call has ended: its result replaces what an object
 * has. An object is used by one thread at a time. While a started call has not ended, its objects are in use:
 * other calls with them get BRV_ERR_ARGUMENT. They may be freed then. The result of a call whose request was
 * freed still comes to its objects.
 *
 * After an error objects stay as they are; dense output is unspecified, unless that is BRV_ERR_ARGUMENT.
 *
 * Nothing is lost of what is handed in, up to the rounding of sums, except by BRV_PUT_BACK_PUBLISHED and in a
 * vote: what is not in the result is in kept of a rank, which adds it to its residual (brv_sparse_add_to).
 * kept may be NULL where format is exact (BRV_VALUES_F32, _F32_PACKED, _PAIRS), but not where entries are
 * selected again on the way: in gTop-k, Ok-Topk and hierarchical sums.
 *
 * A value that is not finite ends the call on all ranks with BRV_ERR_NON_FINITE, and the group stays usable.
 */

/* A sparse vector of the library. */
typedef struct brv_sparse brv_sparse;

/* Makes a sparse vector of length 0 and stores it in *sparse. On failure *sparse is NULL. */
brv_status brv_sparse_new(brv_sparse **sparse);

/* Frees a sparse vector; does nothing if sparse is NULL. */
void brv_sparse_free(brv_sparse *sparse);

/* Stores the number of entries in *count, and the length of the dense vector in *dim, which may be NULL. */
brv_status brv_sparse_count(const brv_sparse *sparse, size_t *count, size_t *dim);

/* Copies the entries by rising index to indices and values, which have room for `capacity` entries and need
 * not be set before, and stores their number in *count. BRV_ERR_ARGUMENT if there are more: *count has the
 * number that is needed, nothing else is written, and the entries stay in the object. */
brv_status brv_sparse_read(const brv_sparse *sparse, uint32_t *indices, float *values, size_t capacity,
                           size_t *count);

/* Replaces the entries by a copy of `count` entries of a vector of length dim. */
brv_status brv_sparse_set(brv_sparse *sparse, const uint32_t *indices, const float *values, size_t count,
                          size_t dim);

/* Stores where the library has the entries, and their number. The memory may be read until the next call that
 * changes the vector, or is to, and until it is freed: so a vector of the library goes into a collective
 * without a copy of the program's, also into one whose result replaces it. */
brv_status brv_sparse_view(const brv_sparse *sparse, const uint32_t **indices, const float **values,
                           size_t *count);

/* Adds factor times the entries to the n elements at dense. n is the vector's dim. */
brv_status brv_sparse_add_to(const brv_sparse *sparse, float factor, float *dense, size_t n);

/* Sets those of the n elements at dense to 0 that have the indices of the entries, such as the entries of a
 * residual that are sent. n is the vector's dim. */
brv_status brv_sparse_clear_in(const brv_sparse *sparse, float *dense, size_t n);

/* What low rank keeps of a list of matrices between calls: their shapes, the right factors that a call begins
 * with, and the factors of the last call. It is used by one thread at a time. All ranks add the same matrices
 * and make the same calls with it. */
typedef struct brv_low_rank brv_low_rank;

/* Makes an object without matrices and stores it in *low_rank. On failure *low_rank is NULL. */
brv_status brv_low_rank_new(brv_low_rank **low_rank);

/* Frees it; does nothing if low_rank is NULL. */
void brv_low_rank_free(brv_low_rank *low_rank);

/* Adds a matrix, whose right factor is drawn from the normal distribution by a seed. rank is 1 or more, and
 * lowered to rows or cols if one of them is less. Factors of calls before are gone. BRV_ERR_EXHAUSTED if
 * there is no memory for the factor. */
brv_status brv_low_rank_add(brv_low_rank *low_rank, size_t rows, size_t cols, uint32_t rank, uint64_t seed);

/* Writes the mean of all ranks' matrices at a position (from 0, in the order of adding), as far as the
 * factors of the last call say, to the n = rows * cols elements at out, row-major. They need not be set
 * before. The same bits on all ranks. BRV_ERR_ARGUMENT if there are no factors. Sends nothing. */
brv_status brv_low_rank_mean(brv_low_rank *low_rank, size_t position, float *out, size_t n);

/* Likewise, of this rank's own matrix: that less what this writes is what the rank keeps for its residual. */
brv_status brv_low_rank_own(brv_low_rank *low_rank, size_t position, float *out, size_t n);

/* Has the next call begin with the right factors of the last (a warm start). */
brv_status brv_low_rank_warm(brv_low_rank *low_rank);

/* Saves what the next call begins with (right factors, the generators of random numbers), and loads it into
 * an object with the same matrices: later calls have the same bits as without the restart. All ranks load the
 * state of the same step; ranks with different ones get BRV_ERR_MISMATCH. The factors of the last call are
 * not saved: they are gone after a load. A load that fails changes nothing. */
brv_status brv_low_rank_saved_size(brv_low_rank *low_rank, size_t *bytes);
brv_status brv_low_rank_save(brv_low_rank *low_rank, void *out, size_t bytes);
brv_status brv_low_rank_load(brv_low_rank *low_rank, const void *saved, size_t bytes);

/* What a rank keeps of one tensor from one Ok-Topk all-reduce to the next: its own threshold, that of the
 * sum, and which rank sums which indices. It is used by one thread at a time. All ranks make theirs alike and
 * make the same calls with it. */
typedef struct brv_ok_topk brv_ok_topk;

/* Makes the state before the first step, for groups of as many ranks as this one, and stores it in *ok_topk:
 * of vectors of length dim (at most 2^32), about k entries of whose sum are kept. On failure *ok_topk is
 * NULL. */
brv_status brv_ok_topk_new(const brv_group *group, size_t dim, size_t k, brv_ok_topk **ok_topk);

/* Frees it; does nothing if ok_topk is NULL. */
void brv_ok_topk_free(brv_ok_topk *ok_topk);

/* Sets how many steps, at least 1, each estimate is used for: 32, 32 and 64 unless set. All ranks set the
 * same before the same step. */
brv_status brv_ok_topk_set_periods(brv_ok_topk *ok_topk, uint32_t local_threshold, uint32_t global_threshold,
                                   uint32_t partition);

/* Selects this rank's entries for the next step among the n = dim values, such as a residual: those that
 * reach its threshold, k / 2 to 2 k of them unless fewer are not 0. selected gets them; the values stay as
 * they are. Sends nothing. BRV_ERR_ARGUMENT if a value is not finite. */
brv_status brv_ok_topk_select(brv_ok_topk *ok_topk, const float *values, size_t n, brv_sparse *selected);

/* Saves the state and loads it, as brv_feedback_saved_size, brv_feedback_save and brv_feedback_load do for
 * feedbacks: into one that was made and set alike. The number of ranks is the same. All ranks load what was
 * saved after the same step. */
brv_status brv_ok_topk_saved_size(const brv_ok_topk *ok_topk, size_t *bytes);
brv_status brv_ok_topk_save(const brv_ok_topk *ok_topk, void *out, size_t bytes);
brv_status brv_ok_topk_load(brv_ok_topk *ok_topk, const void *saved, size_t bytes);

/* How the places of random K are drawn. */
typedef enum brv_draw {
    BRV_DRAW_SCATTERED = 1, /* any places */
    BRV_DRAW_BLOCK = 2,     /* consecutive places, which wrap around at the end */
    BRV_DRAW_MAX = BRV_ENUM_MAX
} brv_draw;

/* How leaders of hosts sum the entries that they have selected. */
typedef enum brv_leader_sum {
    BRV_LEADER_SUM_TOPK = 1,  /* all are delivered: at most k for each host */
    BRV_LEADER_SUM_GTOPK = 2, /* the k of largest magnitude of the sum */
    BRV_LEADER_SUM_MAX = BRV_ENUM_MAX
} brv_leader_sum;

/* From here on made from capi/tests/capi/list_compressed.rs. */

/* Sums the sparse vectors of all ranks and keeps the k entries of largest magnitude, of equal ones those with
 * lower indices: gTop-k (Shi et al., ICDCS 2019). sum gets these entries, kept what this rank adds to its
 * residual by the rule put_back, and what rounding takes away. k and put_back are the same on all ranks, and
 * count is at most k.
 *
 * Costs 2 ceil(log2 P) rounds of at most 8 k bytes each. kept must not be NULL.
 *
 * BRV_ERR_NON_FINITE if a value, or a sum of two ranks that merge, is not finite. */
brv_status brv_gtopk_all_reduce(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                                size_t dim, size_t k, brv_put_back put_back, brv_values format,
                                brv_sparse *sum, brv_sparse *kept, const brv_options *options);
brv_status brv_igtopk_all_reduce(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                                 size_t dim, size_t k, brv_put_back put_back, brv_values format,
                                 brv_sparse *sum, brv_sparse *kept, brv_request **request,
                                 const brv_options *options);

/* Sums the sparse vectors of all ranks, in the order of dense sums: sum gets all entries of the sum, on every
 * rank. kept gets what rounding takes away. limit is the same on all ranks, and count is at most limit.
 *
 * options.algorithm may be BRV_ALGORITHM_BRUCK (a sparse all-gather: ceil(log2 P) rounds, at most 8 (P - 1)
 * limit bytes), BRV_ALGORITHM_DIRECT (each rank sums a range of the indices, and all get the sums) or, where
 * format is exact, BRV_ALGORITHM_DOUBLING (ranks exchange sums, which become dense where that is shorter):
 * Renggli et al., SC 2019.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_topk_all_reduce(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                               size_t dim, size_t limit, brv_values format, brv_sparse *sum, brv_sparse *kept,
                               const brv_options *options);
brv_status brv_itopk_all_reduce(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                                size_t dim, size_t limit, brv_values format, brv_sparse *sum,
                                brv_sparse *kept, brv_request **request, const brv_options *options);

/* Gathers the sparse vectors of all ranks: all is an array with a brv_sparse for each rank, which gets that
 * rank's vector. Every rank gets the rounded values, of its own vector too; what rounding takes away is the
 * difference. limit is the same on all ranks, and count is at most limit.
 *
 * Costs ceil(log2 P) rounds, and at most 8 (P - 1) limit bytes.
 *
 * BRV_ERR_NON_FINITE if a value is not finite; with BRV_VALUES_F32 values may be anything. */
brv_status brv_sparse_all_gather(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                                 size_t dim, size_t limit, brv_values format, brv_sparse *const *all,
                                 const brv_options *options);
brv_status brv_isparse_all_gather(brv_group *group, const uint32_t *indices, const float *values,
                                  size_t count, size_t dim, size_t limit, brv_values format,
                                  brv_sparse *const *all, brv_request **request, const brv_options *options);

/* Sums the sparse vectors of all ranks, in the order of dense sums, a range of the indices to each rank: sum
 * gets the entries of the sum from rank * m to below (rank + 1) * m, where m is dim / P, rounded up; it has
 * the dim of the whole vector. kept gets what rounding takes away. limit is the same on all ranks, and count
 * is at most limit. Costs P - 1 messages of about limit / P entries, and a barrier.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_sparse_reduce_scatter(brv_group *group, const uint32_t *indices, const float *values,
                                     size_t count, size_t dim, size_t limit, brv_values format,
                                     brv_sparse *sum, brv_sparse *kept, const brv_options *options);
brv_status brv_isparse_reduce_scatter(brv_group *group, const uint32_t *indices, const float *values,
                                      size_t count, size_t dim, size_t limit, brv_values format,
                                      brv_sparse *sum, brv_sparse *kept, brv_request **request,
                                      const brv_options *options);

/* Sums the sparse vectors of all ranks and keeps about k of the largest entries, k / 2 to 2 k of them or all:
 * Ok-Topk (Li and Hoefler, PPoPP 2022). sum gets these entries, kept what this rank adds to its residual: the
 * entries that are not in the result, and what rounding takes away. dim is that of ok_topk, and count is at
 * most 2 k, as what brv_ok_topk_select gives. All ranks have used their ok_topk alike; it takes a step,
 * unless the call fails. While a started call has not ended, ok_topk is in use.
 *
 * Costs about 2 k (P - 1) / P entries of 8 bytes a rank, whatever P is, and at most twice as many; 1 + 2
 * ceil(log2 P) rounds, and in steps that estimate a threshold or a partition anew those of up to 10
 * all-reduces of few bytes. kept must not be NULL.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_ok_topk_all_reduce(brv_group *group, const uint32_t *indices, const float *values,
                                  size_t count, size_t dim, brv_ok_topk *ok_topk, brv_values format,
                                  brv_sparse *sum, brv_sparse *kept, const brv_options *options);
brv_status brv_iok_topk_all_reduce(brv_group *group, const uint32_t *indices, const float *values,
                                   size_t count, size_t dim, brv_ok_topk *ok_topk, brv_values format,
                                   brv_sparse *sum, brv_sparse *kept, brv_request **request,
                                   const brv_options *options);

/* Sums the vectors of all ranks, densely inside the hosts and sparsely between them: the ranks of a host sum
 * their n elements at in to the first of them, the leader. Each leader selects the k entries of largest
 * magnitude of its host's sum, of equal ones those with lower indices. Leaders sum these as leader_sum says,
 * with values in this format, and hand the result to their hosts: sum gets it on every rank. kept gets n
 * elements: on leaders what was not delivered of the vectors of their hosts, on other ranks zeros. In place:
 * in == kept, which an error leaves as it is; so the vector is a residual, to which each step adds its
 * gradient. n is at most 2^32; n, k, leader_sum, put_back and format are the same on all ranks. put_back is
 * the rule of gTop-k.
 *
 * The result depends on which ranks share a host, but not on whether they share memory. With H hosts of at
 * most L ranks it costs 2 ceil(log2 L) rounds inside the hosts, of 4 n bytes to the leader and of at most 8 k
 * bytes back (8 k H with top-k), and between leaders what gTop-k or top-k cost among H ranks.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_hierarchical_all_reduce(brv_group *group, const float *in, float *kept, size_t n, size_t k,
                                       brv_leader_sum leader_sum, brv_put_back put_back, brv_values format,
                                       brv_sparse *sum, const brv_options *options);
brv_status brv_ihierarchical_all_reduce(brv_group *group, const float *in, float *kept, size_t n, size_t k,
                                        brv_leader_sum leader_sum, brv_put_back put_back, brv_values format,
                                        brv_sparse *sum, brv_request **request, const brv_options *options);

/* Sums the vectors of all ranks at k places, or all if there are fewer, which all ranks draw alike, by the
 * seed and the number of the step: only the values travel, by a dense all-reduce of k elements (random K and
 * random block: Vogels et al., NeurIPS 2019). sum gets an entry for each place. in is unchanged: what a rank
 * keeps for later steps is in with zeros at the indices of sum (brv_sparse_clear_in). n is at most 2^32; n,
 * k, draw, seed and step are the same on all ranks.
 *
 * BRV_ERR_NON_FINITE if a value, at one of the places or not, or a sum is not finite. */
brv_status brv_random_k_all_reduce(brv_group *group, const float *in, size_t n, size_t k, brv_draw draw,
                                   uint64_t seed, uint64_t step, brv_sparse *sum, const brv_options *options);
brv_status brv_irandom_k_all_reduce(brv_group *group, const float *in, size_t n, size_t k, brv_draw draw,
                                    uint64_t seed, uint64_t step, brv_sparse *sum, brv_request **request,
                                    const brv_options *options);

/* Sums the n elements at in over all ranks, to out on every rank; blocks of `block` elements that are
 * entirely zero do not travel (OmniReduce: Fei et al., SIGCOMM 2021). The sum has the bits of the dense one,
 * except that a zero may have the other sign. block is 1 or more, the same on all ranks, and leaves fewer
 * than 2^32 blocks. In place: in == out.
 *
 * Costs 2 rounds, and (P - 1) / P times 4 + 4 block bytes for each block of in, and of the sum, that is not
 * zero.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_block_all_reduce(brv_group *group, const float *in, float *out, size_t n, size_t block,
                                const brv_options *options);
brv_status brv_iblock_all_reduce(brv_group *group, const float *in, float *out, size_t n, size_t block,
                                 brv_request **request, const brv_options *options);

/* Sums the n elements at in over all ranks, to out on every rank, with values in this format on the wire:
 * each rank rounds what it sends to the others, which sum a slice each, and its own slice of the sum (as in
 * 1-bit SGD: Seide et al., Interspeech 2014). kept gets n elements: what rounding takes away on this rank.
 * out and kept of all ranks add up to the sum of in of all ranks, up to rounding of the sums. In place: in ==
 * out; kept is apart. It may be NULL with BRV_VALUES_F32. BRV_VALUES_F32_PACKED is refused: there are no
 * indices.
 *
 * Costs 2 rounds, and 2 (P - 1) / P times the bytes of n values a rank.
 *
 * BRV_ERR_NON_FINITE if a value or a sum is not finite. */
brv_status brv_quantised_all_reduce(brv_group *group, const float *in, float *out, float *kept, size_t n,
                                    brv_values format, const brv_options *options);
brv_status brv_iquantised_all_reduce(brv_group *group, const float *in, float *out, float *kept, size_t n,
                                     brv_values format, brv_request **request, const brv_options *options);

/* Elects the sign of each of the n elements: out gets the majority of the signs of in of all ranks, as 1, -1,
 * or 0 for a tie and where all have 0 (signSGD with majority vote: Bernstein et al., ICLR 2019). A 0 votes
 * for nothing. What a vote ignores is not kept anywhere. In place: in == out.
 *
 * Costs 2 rounds, and (P - 1) / P times n / 4 to n / 2 bytes a rank.
 *
 * BRV_ERR_NON_FINITE if a value is not finite. */
brv_status brv_vote_all_reduce(brv_group *group, const float *in, float *out, size_t n,
                               const brv_options *options);
brv_status brv_ivote_all_reduce(brv_group *group, const float *in, float *out, size_t n,
                                brv_request **request, const brv_options *options);

/* Computes the factors of the mean of all ranks' matrices (PowerSGD: Vogels et al., NeurIPS 2019): one dense
 * all-reduce of the left factors of all matrices, and one of the right factors. matrices has a pointer to
 * each matrix that low_rank has, row-major; tensors is their number. The factors are kept in low_rank, which
 * all ranks have used alike: brv_low_rank_mean and brv_low_rank_own read them. After an error it has the
 * factors that it had. While a started call has not ended, low_rank is in use.
 *
 * BRV_ERR_NON_FINITE if a value or a factor is not finite. */
brv_status brv_low_rank_all_reduce(brv_group *group, brv_low_rank *low_rank, const float *const *matrices,
                                   size_t tensors, const brv_options *options);
brv_status brv_ilow_rank_all_reduce(brv_group *group, brv_low_rank *low_rank, const float *const *matrices,
                                    size_t tensors, brv_request **request, const brv_options *options);

/* Up to here made from the list of compressed collectives. */

/* ---- Compressors and error feedback -------------------------------------------------------------------- */

/* The arithmetic of compression without a network, for programs that make their own exchange out of the
 * collectives above. Nothing here sends anything. An object is used by one thread at a time. BRV_ERR_ARGUMENT
 * for a value or a sum that is not finite, too: objects and output are then as they were, residuals up to one
 * rounding of what was added. All results have the same bits on every processor. */

/* What of one tensor's gradients was not sent, in float: each step adds a gradient and takes out what is
 * sent. So what was sent plus the residual is always the sum of the gradients, up to rounding.
 *
 *     brv_residual_feed(residual, gradient, n, BRV_F32, k, selected);
 *     brv_sparse_view(selected, &indices, &values, &count);
 *     if (brv_gtopk_all_reduce(group, indices, values, count, n, k, BRV_PUT_BACK_CONSERVING, BRV_VALUES_BF16,
 *                              sum, kept, NULL) == BRV_OK)
 *         brv_residual_put_back(residual, kept);
 *     else
 *         brv_residual_put_back(residual, selected);
 */
typedef struct brv_residual brv_residual;

/* Makes a residual of n zeros, at most 2^32, and stores it in *residual. On failure *residual is NULL.
 * BRV_ERR_EXHAUSTED if there is no memory. */
brv_status brv_residual_new(size_t n, brv_residual **residual);

/* Frees it; does nothing if residual is NULL. */
void brv_residual_free(brv_residual *residual);

/* Stores where the library has the values, and their number. The memory may be read until the next call that
 * changes the residual, and until it is freed: so a residual goes into brv_random_k_all_reduce,
 * brv_block_all_reduce or brv_ok_topk_select without a copy. */
brv_status brv_residual_view(const brv_residual *residual, const float **values, size_t *n);

/* Replaces the values by a copy of these n, the length of the residual. */
brv_status brv_residual_set(brv_residual *residual, const float *values, size_t n);

/* Adds the n elements at gradient, of type BRV_F32, BRV_F64, BRV_F16 or BRV_BF16. n is the length of the
 * residual. */
brv_status brv_residual_add(brv_residual *residual, const void *gradient, size_t n, brv_type type);

/* Moves the k entries of largest magnitude to selected, of equal ones those with lower indices. Fewer if
 * fewer are not 0. */
brv_status brv_residual_select(brv_residual *residual, size_t k, brv_sparse *selected);

/* Moves all entries that reach this magnitude, above 0, to selected; if they are more than limit, the limit
 * largest ones. */
brv_status brv_residual_select_over(brv_residual *residual, float threshold, size_t limit,
                                    brv_sparse *selected);

/* brv_residual_add and brv_residual_select in one pass over memory, with the same results. */
brv_status brv_residual_feed(brv_residual *residual, const void *gradient, size_t n, brv_type type, size_t k,
                             brv_sparse *selected);

/* Adds entries: those that were selected and not delivered, or the kept ones of a collective. */
brv_status brv_residual_put_back(brv_residual *residual, const brv_sparse *entries);

/* Sets the elements at the indices of entries to 0: what was sent of them is delivered, as by
 * brv_random_k_all_reduce. */
brv_status brv_residual_clear_at(brv_residual *residual, const brv_sparse *entries);

/* Saves a residual and loads it into one of the same length, as brv_feedback_saved_size, brv_feedback_save
 * and brv_feedback_load do for feedbacks. */
brv_status brv_residual_saved_size(const brv_residual *residual, size_t *bytes);
brv_status brv_residual_save(const brv_residual *residual, void *out, size_t bytes);
brv_status brv_residual_load(brv_residual *residual, const void *saved, size_t bytes);

/* Subtracts entries: what is sent of them, where their values are not those of the residual (as with
 * BRV_SELECT_FIXED and BRV_SELECT_BY_SIGN). */
brv_status brv_residual_take(brv_residual *residual, const brv_sparse *entries);

/* A residual with momentum before the selection. If momentum were applied to what is received, an entry that
 * is rarely sent would lose the momentum of the steps between; so the optimiser must not apply it again. By
 * its rule, m being the momentum and g the gradient, scaled down to the norm clip / sqrt(ranks):
 *
 * - BRV_MOMENTUM_CORRECTED (DGC): u = m u + g; v += u. Entries are taken from v, and where they are sent u
 *   and v begin again at 0 (masking). BRV_MOMENTUM_NESTEROV: v += m u + g.
 * - BRV_MOMENTUM_AWARE (SAMomentum): w += g. Entries are taken from w, and where they are sent it becomes
 *   m w.
 *
 *     brv_momentum_residual_feed(residual, gradient, n, BRV_F32, k, selected);
 *     brv_sparse_view(selected, &indices, &values, &count);
 *     if (brv_gtopk_all_reduce(group, indices, values, count, n, k, BRV_PUT_BACK_CONSERVING, BRV_VALUES_BF16,
 *                              sum, kept, NULL) == BRV_OK)
 *         brv_momentum_residual_put_back(residual, kept, sum);
 *     else
 *         brv_momentum_residual_put_back(residual, selected, NULL);
 */
typedef struct brv_momentum_residual brv_momentum_residual;

/* Makes a residual of n zeros, at most 2^32, and stores it in *residual. momentum is at least 0 (with
 * BRV_MOMENTUM_AWARE more) and below 1. clip is the norm of the gradients of all ranks together; 0 for no
 * clipping, always with BRV_MOMENTUM_AWARE. ranks is not used without it. On failure *residual is NULL. */
brv_status brv_momentum_residual_new(size_t n, brv_momentum rule, double momentum, double clip,
                                     uint32_t ranks, brv_momentum_residual **residual);

/* Frees it; does nothing if residual is NULL. */
void brv_momentum_residual_free(brv_momentum_residual *residual);

/* Stores where the library has the values that were not sent (v or w), the velocity u, and their number.
 * velocity may be NULL, and *velocity is with BRV_MOMENTUM_AWARE. The memory may be read until the next call
 * that changes the residual. */
brv_status brv_momentum_residual_view(const brv_momentum_residual *residual, const float **values,
                                      const float **velocity, size_t *n);

/* As for brv_residual: adds a gradient; moves the k entries of largest magnitude to selected; moves what
 * reaches a threshold; the first two in one. take takes out entries that the program has selected of the
 * values by another rule, such as brv_sparse_select. The entries of a step are taken at once:
 * BRV_ERR_ARGUMENT for a second time after the same gradient. */
brv_status brv_momentum_residual_add(brv_momentum_residual *residual, const void *gradient, size_t n,
                                     brv_type type);
brv_status brv_momentum_residual_select(brv_momentum_residual *residual, size_t k, brv_sparse *selected);
brv_status brv_momentum_residual_select_over(brv_momentum_residual *residual, float threshold, size_t limit,
                                             brv_sparse *selected);
brv_status brv_momentum_residual_feed(brv_momentum_residual *residual, const void *gradient, size_t n,
                                      brv_type type, size_t k, brv_sparse *selected);
brv_status brv_momentum_residual_take(brv_momentum_residual *residual, const brv_sparse *entries);

/* All values were delivered, as by a dense all-reduce of them. The velocity goes on: what is delivered is
 * that of momentum SGD. */
brv_status brv_momentum_residual_deliver(brv_momentum_residual *residual);

/* Adds entries: those that were selected and not delivered, or the kept ones of a collective. At the indices
 * of delivered (the sum of the collective; NULL for none) entries were sent, and this is what rounding has
 * taken away; elsewhere they count as not sent, and their velocity comes back. With BRV_MOMENTUM_AWARE that
 * is the same. */
brv_status brv_momentum_residual_put_back(brv_momentum_residual *residual, const brv_sparse *entries,
                                          const brv_sparse *delivered);

/* Saves a residual and loads it into one of the same length and rule, as for brv_residual. What was taken
 * last counts as delivered. */
brv_status brv_momentum_residual_saved_size(const brv_momentum_residual *residual, size_t *bytes);
brv_status brv_momentum_residual_save(const brv_momentum_residual *residual, void *out, size_t bytes);
brv_status brv_momentum_residual_load(brv_momentum_residual *residual, const void *saved, size_t bytes);

/* Which entries of a dense vector are selected: docs/compression.md has the costs. */
typedef enum brv_selection_rule {
    BRV_SELECT_TOP_K = 1,      /* the k of largest magnitude, of equal ones those with lower indices */
    BRV_SELECT_OVER = 2,       /* what reaches the threshold; the limit largest if that is more */
    BRV_SELECT_SAMPLED = 3,    /* what reaches a threshold from a sample: about k, at least one, at most
                                  limit. Aji and Heafield, EMNLP 2017 */
    BRV_SELECT_RESAMPLED = 4,  /* likewise if these are 0.8 k to 1.3 k, else the k largest. Lin et al., ICLR
                                  2018 */
    BRV_SELECT_FIXED = 5,      /* what reaches the threshold, each as that with its sign. Strom, Interspeech
                                  2015 */
    BRV_SELECT_BY_SIGN = 6,    /* the k largest positive values and the limit largest negative ones, each as
                                  their mean. Dryden et al., MLHPC 2016 */
    BRV_SELECT_RANDOM_K = 7,   /* k places that are drawn, zeros too. Vogels et al., NeurIPS 2019 */
    BRV_SELECT_RANDOM_BLOCK = 8, /* k consecutive places, of which the first is drawn, around the end */
    BRV_SELECT_BIN_MAXIMA = 9, /* in bins of k places what another such gradient would raise to the largest
                                  magnitude. AdaComp: Chen et al., AAAI 2018 */
    BRV_SELECT_BLOCKS = 10,    /* the k blocks of 256 elements of largest norm, all of their places. Fei et
                                  al., SIGCOMM 2021 */
    BRV_SELECTION_RULE_MAX = BRV_ENUM_MAX
} brv_selection_rule;

/* A rule and its settings; fields that a rule does not use are ignored. */
typedef struct brv_selector {
    uint32_t size;         /* sizeof(brv_selector) */
    brv_selection_rule rule;
    size_t k;              /* entries, but for BRV_SELECT_OVER and BRV_SELECT_FIXED */
    size_t limit;          /* BRV_SELECT_OVER, BRV_SELECT_SAMPLED, BRV_SELECT_BY_SIGN */
    double threshold;      /* above 0: BRV_SELECT_OVER, BRV_SELECT_FIXED */
    uint64_t seed;         /* of what is drawn, with the number of the step: equal numbers draw the same */
    uint64_t step;
    const float *gradient; /* BRV_SELECT_BIN_MAXIMA: the last gradient, which the values have in them */
    uint64_t reserved[4];
} brv_selector;

#define BRV_SELECTOR_INIT(rule, k) {sizeof(brv_selector), rule, k, SIZE_MAX, 0.0, 0, 0, NULL, {0, 0, 0, 0}}

/* Copies the entries of the n elements at values that a rule selects to selected. Nothing is taken out:
 * brv_residual_take and brv_momentum_residual_take do that. */
brv_status brv_sparse_select(brv_sparse *selected, const float *values, size_t n,
                             const brv_selector *selector);

/* How values become bytes; numbers are little-endian, codes packed. */
typedef enum brv_format {
    BRV_FORMAT_F32 = 0,          /* as they are */
    BRV_FORMAT_F16 = 1,          /* the nearest number of 16 bits; at most 65,504 */
    BRV_FORMAT_BF16 = 2,         /* likewise, bfloat16 */
    BRV_FORMAT_SIGN = 3,         /* 1 bit: the sign, times one magnitude of all (config.magnitude) */
    BRV_FORMAT_SIGN_COLUMNS = 4, /* 1 bit: the sign, times the mean magnitude of the value's column */
    BRV_FORMAT_SIGN_PAIRS = 5,   /* 1 bit: the mean of the column's positive or of its negative values. Seide
                                    et al., Interspeech 2014 */
    BRV_FORMAT_TWO_BIT = 6,      /* the sign, times one of two magnitudes. Aji and Heafield, EMNLP 2017 */
    BRV_FORMAT_TERNARY = 7,      /* 2 bits: -1, 0 or 1 times the largest magnitude, at random without bias.
                                    TernGrad: Wen et al., NeurIPS 2017 */
    BRV_FORMAT_QSGD = 8,         /* 2, 4 or 8 bits: one of some levels of a bucket's norm, at random without
                                    bias. QSGD: Alistarh et al., NeurIPS 2017 */
    BRV_FORMAT_MIN_MAX = 9,      /* 8 bits: the nearest of 256 points between a bucket's extremes */
    BRV_FORMAT_MAX = BRV_ENUM_MAX
} brv_format;

typedef enum brv_magnitude {
    BRV_MAGNITUDE_MEAN = 0,
    BRV_MAGNITUDE_MIN = 1, /* the smallest: error feedback is sound only where no value is 0 */
    BRV_MAGNITUDE_MAX = BRV_ENUM_MAX
} brv_magnitude;

typedef enum brv_norm {
    BRV_NORM_EUCLIDEAN = 0,
    BRV_NORM_LARGEST = 1, /* the largest magnitude: less variance with few levels, but fewer zeros */
    BRV_NORM_MAX = BRV_ENUM_MAX
} brv_norm;

/* A format and its settings; fields that the format does not use are ignored. Set it with one of the macros.
 */
typedef struct brv_quantiser_config {
    uint32_t size;           /* sizeof(brv_quantiser_config) */
    brv_format format;
    brv_magnitude magnitude; /* BRV_FORMAT_SIGN, BRV_FORMAT_TWO_BIT */
    uint32_t columns;        /* 1 or more: BRV_FORMAT_SIGN_COLUMNS, BRV_FORMAT_SIGN_PAIRS; value i is in
                                column i % columns */
    uint32_t levels;         /* 1 to 127: BRV_FORMAT_QSGD */
    uint32_t bucket;         /* values in a bucket: BRV_FORMAT_QSGD, BRV_FORMAT_MIN_MAX; rounded up to a
                                multiple of 512 */
    brv_norm norm;           /* BRV_FORMAT_QSGD */
    uint32_t unused;         /* 0 */
    double clip;             /* BRV_FORMAT_TERNARY: clips at so many standard deviations, as 2.5; 0: not */
    uint64_t seed;           /* BRV_FORMAT_TERNARY, BRV_FORMAT_QSGD; give ranks different ones, so that their
                                errors average out */
    uint64_t reserved[4];
} brv_quantiser_config;

#define BRV_QUANTISER_INIT_ALL(format, levels, seed) \
    {sizeof(brv_quantiser_config), format, BRV_MAGNITUDE_MEAN, 1, levels, 512, BRV_NORM_EUCLIDEAN, 0, 0.0, \
     seed, {0, 0, 0, 0}}
#define BRV_QUANTISER_INIT(format) BRV_QUANTISER_INIT_ALL(format, 1, 0)
#define BRV_QUANTISER_TERNARY(seed) BRV_QUANTISER_INIT_ALL(BRV_FORMAT_TERNARY, 1, seed)
#define BRV_QUANTISER_QSGD(levels, seed) BRV_QUANTISER_INIT_ALL(BRV_FORMAT_QSGD, levels, seed)

/* Writes values as bytes, and reads them. What it draws at random depends on the seed, the number of the
 * message and the place. */
typedef struct brv_quantiser brv_quantiser;

/* Makes a quantiser and stores it in *quantiser. On failure *quantiser is NULL. */
brv_status brv_quantiser_new(const brv_quantiser_config *config, brv_quantiser **quantiser);

/* Frees it; does nothing if quantiser is NULL. */
void brv_quantiser_free(brv_quantiser *quantiser);

/* Stores in *bytes how many bytes a message of `count` values has. */
brv_status brv_quantiser_bytes(const brv_quantiser *quantiser, size_t count, size_t *bytes);

/* Writes the message of the `count` values to the bytes at out, which need not be set before. bytes is the
 * result of brv_quantiser_bytes. */
brv_status brv_quantiser_encode(brv_quantiser *quantiser, const float *values, size_t count, void *out,
                                size_t bytes);

/* Reads a message of `count` values, of this format, to out, which need not be set before. The message may
 * come from anywhere: BRV_ERR_ARGUMENT if it is none. Settings and state of the quantiser that wrote it may
 * differ. */
brv_status brv_quantiser_decode(const brv_quantiser *quantiser, const void *message, size_t bytes, float *out,
                                size_t count);

/* Likewise, but adds factor times the values to the n elements at dense. */
brv_status brv_quantiser_add_to(const brv_quantiser *quantiser, const void *message, size_t bytes,
                                float factor, float *dense, size_t n);

/* Adds a gradient to a residual, as brv_residual_add, writes the message of the sum to out, and leaves in the
 * residual what the message misses. BRV_ERR_ARGUMENT, too, if residuals would grow without bound: for
 * BRV_MAGNITUDE_MIN, BRV_FORMAT_TERNARY, and BRV_FORMAT_QSGD with few levels, which has no bias and needs no
 * feedback. */
brv_status brv_quantiser_feed(brv_quantiser *quantiser, brv_residual *residual, const void *gradient,
                              size_t n, brv_type type, void *out, size_t bytes);

/* Adds a message that was not delivered to the residual, of as many values. */
brv_status brv_quantiser_put_back(const brv_quantiser *quantiser, brv_residual *residual, const void *message,
                                  size_t bytes);

/* Writes a message of `count` values of BRV_FORMAT_QSGD in Elias's codes, which are shorter where most levels
 * are 0, and slow (Alistarh et al., NeurIPS 2017, 3.2); and restores it. *written gets the number of bytes;
 * if that is more than capacity, BRV_ERR_ARGUMENT: nothing else was written. Codes may come from anywhere:
 * BRV_ERR_ARGUMENT if they are none. */
brv_status brv_elias_encode(const void *message, size_t bytes, size_t count, void *out, size_t capacity,
                            size_t *written);
brv_status brv_elias_decode(const void *code, size_t bytes, size_t count, void *out, size_t capacity,
                            size_t *written);

/* Saves what a quantiser keeps from message to message (the generator of random numbers, the threshold of two
 * bits), and loads it into one of the same format: later messages have the same bits as without the restart.
 * 0 bytes for formats that keep nothing. */
brv_status brv_quantiser_saved_size(const brv_quantiser *quantiser, size_t *bytes);
brv_status brv_quantiser_save(const brv_quantiser *quantiser, void *out, size_t bytes);
brv_status brv_quantiser_load(brv_quantiser *quantiser, const void *saved, size_t bytes);

/* How indices of sparse messages are written: the smallest of the fast ones; the smallest of all; always by
 * this one. */
typedef enum brv_codec {
    BRV_CODEC_FAST = 0,
    BRV_CODEC_SMALLEST = 1,
    BRV_CODEC_RAW = 2,
    BRV_CODEC_PACKED = 3,
    BRV_CODEC_RICE = 4,
    BRV_CODEC_BITMAP = 5,
    BRV_CODEC_MAX = BRV_ENUM_MAX
} brv_codec;

/* Writes the entries as a message to out: indices by the codec, values by the quantiser; and its number of
 * bytes to *bytes. If that is more than capacity, BRV_ERR_ARGUMENT: nothing else was written, and the next
 * call writes the same message. kept gets what rounding takes away, for brv_residual_put_back; it may be
 * NULL. */
brv_status brv_sparse_encode(const brv_sparse *sparse, brv_quantiser *quantiser, brv_codec codec,
                             brv_sparse *kept, void *out, size_t capacity, size_t *bytes);

/* Reads a message of at most `limit` entries of a vector of length dim, with values of the quantiser's
 * format, and replaces the entries of sparse by them. The message may come from anywhere: BRV_ERR_ARGUMENT if
 * it is none. */
brv_status brv_sparse_decode(brv_sparse *sparse, const brv_quantiser *quantiser, const void *message,
                             size_t bytes, size_t dim, size_t limit);

/* ---- Planning ------------------------------------------------------------------------------------------ */

/* A vector of float on each rank that is to be summed, how it may be compressed, and the ranks. Set it with
 * BRV_SUMMAND_INIT; nothing of it is kept. */
typedef struct brv_summand {
    uint32_t size;       /* sizeof(brv_summand) */
    int32_t values;      /* a brv_values: of a quantised vector, and of packed entries; BRV_UNSET for none:
                            then entries are exact, in one way as pairs and in one packed */
    uint64_t elements;   /* its length */
    double density;      /* the share of entries that sparse collectives keep; 0 for none */
    uint32_t rank;       /* of low-rank factors, where the vector is a nearly square matrix; 0 for none */
    uint32_t ranks;      /* how many there are; 0 for those of the group */
    uint32_t hosts;      /* over which the ranks are spread evenly; 0 for those of the group, or for one host
                            for each of `ranks` ranks */
    uint32_t unused;     /* 0 */
    const char *machine; /* speeds, as in BREVITY_MACHINE: docs/algorithms.md; NULL for those of the group */
    uint64_t reserved[4];
} brv_summand;

#define BRV_SUMMAND_INIT {sizeof(brv_summand), BRV_UNSET, 0, 0.0, 0, 0, 0, 0, NULL, {0, 0, 0, 0}}

/* All ways to sum a vector, and the seconds that each is estimated to take: what `brevity plan --elements`
 * prints. It does not change, and may be used by several threads. */
typedef struct brv_plan brv_plan;

/* Makes a plan and stores it in *plan; on failure *plan is NULL. group may be NULL if summand has the number
 * of ranks; speeds are then those that groups assume where they can't measure them. The same on all ranks.
 * Sends nothing. */
brv_status brv_plan_new(const brv_group *group, const brv_summand *summand, brv_plan **plan);

/* Frees it; does nothing if plan is NULL. */
void brv_plan_free(brv_plan *plan);

/* The fastest way by which every rank gets a sum of gradients, such as "gtop-k all-reduce by binomial
 * (pairs)", or "dense" if compression does not pay. Its reason, in one line. "" if plan is NULL. Never NULL,
 * valid until the plan is freed. */
const char *brv_plan_choice(const brv_plan *plan);
const char *brv_plan_reason(const brv_plan *plan);

/* One way. */
typedef struct brv_plan_row {
    uint64_t size;             /* sizeof(brv_plan_row) */
    const char *collective;    /* such as "top-k all-reduce"; "all-reduce" is dense, "all-gather (sign-norm)"
                                  that of a policy. Valid until the plan is freed */
    const char *algorithm;     /* such as "direct", or "shared memory"; likewise */
    uint32_t rounds;
    uint32_t is_sum;           /* 0 if ranks get a part of the sum, a vote, the sum at random places or a
                                  sample: that is no alternative to a sum */
    double bytes;              /* that a rank sends */
    double collective_seconds; /* with the merging of entries */
    double own_seconds;        /* of each rank: to compress with error feedback, and to write the sum back */
    const char *wire;          /* how sparse messages are written, "pairs" or such as "packed f32"; "" where
                                  there are none. Valid until the plan is freed */
    uint64_t reserved[3];
} brv_plan_row;

#define BRV_PLAN_ROW_INIT {sizeof(brv_plan_row), NULL, NULL, 0, 0, 0, 0, 0, NULL, {0, 0, 0}}

/* Stores how many ways there are, and one of them, from 0: the fastest first. *row must have been
 * initialised; BRV_ERR_ARGUMENT if there is no such row. */
brv_status brv_plan_count(const brv_plan *plan, size_t *count);
brv_status brv_plan_get_row(const brv_plan *plan, size_t index, brv_plan_row *row);

/* ---- The parameter server ------------------------------------------------------------------------------ */

/* A sharded parameter server, and this rank's part in it: a worker, a shard, or both. Workers train at their
 * own pace: a step pushes what the method makes of the gradients to all shards, and each answers with what
 * has changed. docs/server.md says what each method sends, what is kept in memory and who may fail. A server
 * is used by one thread at a time.
 *
 *     brv_server_config config = BRV_SERVER_CONFIG_INIT;
 *     config.method = BRV_SERVER_DGS;
 *     config.density = 0.01;
 *     config.momentum = 0.7;
 *     brv_server_new(group, &config, &server);
 *     brv_server_add(server, "weight", shape, 2);
 *     brv_server_begin(server, parameters, 1, NULL);
 *     brv_server_fetch(server, parameters, 1, NULL);
 *     while (...)
 *         brv_server_take_step(server, gradients, rate, parameters, 1, NULL, NULL);
 *     brv_server_leave(server, NULL);
 */
typedef struct brv_server brv_server;

/* What workers push: all of the gradients; the largest entries of the residual; SAMomentum; momentum
 * correction with masking. */
typedef enum brv_server_method {
    BRV_SERVER_ASGD = 1,
    BRV_SERVER_GRADIENT_DROPPING = 2,
    BRV_SERVER_DGS = 3,
    BRV_SERVER_DGC = 4,
    BRV_SERVER_METHOD_MAX = BRV_ENUM_MAX
} brv_server_method;

/* What shards do with a gradient: -rate g; or AdaGrad. */
typedef enum brv_server_rule {
    BRV_SERVER_SGD = 0,
    BRV_SERVER_ADAGRAD = 1,
    BRV_SERVER_RULE_MAX = BRV_ENUM_MAX
} brv_server_rule;

/* Among which entries the largest are selected: those of one tensor on one shard; all of a shard. */
typedef enum brv_threshold {
    BRV_THRESHOLD_TENSOR = 0,
    BRV_THRESHOLD_SHARD = 1,
    BRV_THRESHOLD_MAX = BRV_ENUM_MAX
} brv_threshold;

/* Settings; equal on all ranks. Begin with BRV_SERVER_CONFIG_INIT, which is ASGD where every rank serves. */
typedef struct brv_server_config {
    uint32_t size;
    uint32_t method;          /* brv_server_method */
    double density;           /* the share of entries in a push: above 0, at most 1; not used by ASGD */
    double secondary_density; /* that of answers; 0 for the same */
    double momentum;          /* of DGS (above 0) and DGC (at least 0), below 1 */
    double clip;              /* of DGC: the norm of all workers' gradients together; 0 for none */
    double epsilon;           /* of AdaGrad: what keeps the divisor from being 0, as 1e-8 */
    uint32_t servers;         /* so many of the last ranks serve and do not work; 0: every rank does both */
    uint32_t rule;            /* brv_server_rule; DGS needs BRV_SERVER_SGD */
    uint32_t threshold;       /* brv_threshold */
    uint32_t values;          /* brv_values; ASGD needs BRV_VALUES_F32 */
    int64_t staleness;        /* how many steps a worker may be ahead of the slowest; -1: no bound */
    uint32_t keep_pushes;     /* 1: workers keep their pushes until brv_server_confirm_saved */
    uint32_t codec;           /* brv_codec */
    double patience;          /* with staleness: how many seconds nothing may be heard of a worker before
                                 the others go on without it; 0 for a quarter of the group's timeout */
    uint64_t reserved[7];
} brv_server_config;

#define BRV_SERVER_CONFIG_INIT \
    {sizeof(brv_server_config), BRV_SERVER_ASGD, 0.0, 0.0, 0.0, 0.0, 0.0, 0, BRV_SERVER_SGD, \
     BRV_THRESHOLD_TENSOR, BRV_VALUES_F32, -1, 0, 0, 0.0, {0, 0, 0, 0, 0, 0, 0}}

/* Makes a server without tensors, for use with group, and stores it in *server; NULL on failure. */
brv_status brv_server_new(brv_group *group, const brv_server_config *config, brv_server **server);

/* Frees a server, which ends for this rank: workers lose its shard. Does nothing if server is NULL. */
void brv_server_free(brv_server *server);

/* Adds a tensor before the server begins: its name (UTF-8, unique; copied) and the lengths of its
 * dimensions. */
brv_status brv_server_add(brv_server *server, const char *name, const size_t *shape, size_t dimensions);

/* Begins from a state that brv_server_save wrote on a rank; call it after all tensors, once for each state.
 * The numbers of workers and servers may be others: docs/server.md has the rule. */
brv_status brv_server_resume(brv_server *server, const void *saved, size_t bytes);

/* Makes the server on all ranks of the group, and begins to serve where this rank does. parameters has one
 * pointer for each tensor; those of the servers are where the model begins. With dedicated servers, in a
 * group of all ranks of a job, it waits for nobody: a worker may come late, and one whose tensors or settings
 * differ from those of the servers is refused when it fetches. Otherwise it waits for all ranks, and
 * BRV_ERR_TIMEOUT closes the group. */
brv_status brv_server_begin(brv_server *server, const float *const *parameters, size_t tensors,
                            const brv_options *options);

/* 1 if this rank is a worker, 0 if it only serves; -1 on failure. */
int32_t brv_server_is_worker(const brv_server *server);

/* Replaces the parameters by the model. Every worker begins with this, also one that comes late.
 * BRV_ERR_PEER_LOST if a server has died or ended, with its rank; BRV_ERR_TIMEOUT if one does not answer
 * within the timeout; BRV_ERR_PROTOCOL if one refuses. None of these closes the group. After an error, and
 * after a request that was canceled, fetch again: pushes and pulls are refused until then. */
brv_status brv_server_fetch(brv_server *server, float *const *parameters, size_t tensors,
                            const brv_options *options);
brv_status brv_iserver_fetch(brv_server *server, float *const *parameters, size_t tensors,
                             brv_request **request, const brv_options *options);

/* What a step has brought. Begin with BRV_SERVER_STEP_INIT. */
typedef struct brv_server_step {
    uint32_t size;
    uint32_t unused;
    uint64_t clock; /* the pushes of all workers that a shard had applied */
    uint64_t lag;   /* those of others between this worker's last answer and its push */
    uint64_t bytes; /* of this step's messages, both ways */
    uint64_t reserved[4];
} brv_server_step;

#define BRV_SERVER_STEP_INIT {sizeof(brv_server_step), 0, 0, 0, 0, {0, 0, 0, 0}}

/* Pushes gradients and adds the answers to the parameters: brv_server_push and then brv_server_pull. step is
 * NULL, or gets the figures.
 *
 * brv_iserver_take_step pushes before it returns, so the gradients are used no longer then; with the errors
 * of a push there is no request. Until a request of a server has ended, the server is in use: other calls on
 * it get BRV_ERR_ARGUMENT. brv_request_cancel gives up the wait, after which the answers can be pulled. A
 * server that is freed meanwhile ends with the request. */
brv_status brv_server_take_step(brv_server *server, const float *const *gradients, double rate,
                                float *const *parameters, size_t tensors, brv_server_step *step,
                                const brv_options *options);
brv_status brv_iserver_take_step(brv_server *server, const float *const *gradients, double rate,
                                 float *const *parameters, size_t tensors, brv_server_step *step,
                                 brv_request **request, const brv_options *options);

/* Sends what the method makes of the gradients to all shards, and does not wait: compute on, and pull
 * before the next push. rate is the learning rate. BRV_ERR_NON_FINITE for a value that is not finite:
 * nothing was sent. Of the options only the name has a use. */
brv_status brv_server_push(brv_server *server, const float *const *gradients, double rate, size_t tensors,
                           const brv_options *options);

/* Waits for the answers to the last push, and adds them to the parameters; without a push it asks for what
 * this worker is owed. Errors are as for brv_server_fetch. After BRV_ERR_TIMEOUT the answers can be pulled
 * again; after BRV_ERR_PROTOCOL the push is back in the residuals. The answers of some shards may have been
 * added then. */
brv_status brv_server_pull(brv_server *server, float *const *parameters, size_t tensors,
                           brv_server_step *step, const brv_options *options);
brv_status brv_iserver_pull(brv_server *server, float *const *parameters, size_t tensors,
                            brv_server_step *step, brv_request **request, const brv_options *options);

/* Changes the density of this worker's pushes from the next one on, for instance during warm-up. */
brv_status brv_server_set_density(brv_server *server, double density);

/* Serves until all workers have left or are gone, at most for so many seconds (BRV_FOREVER for no limit), and
 * returns BRV_OK then, else BRV_PENDING. What a dedicated server calls; on a rank that works and serves
 * BRV_ERR_ARGUMENT, since brv_server_leave serves.
 *
 * With a timeout in the options, BRV_ERR_TIMEOUT if some workers have not left, and nothing was heard of any
 * of them for so long, which counts over such calls that follow each other. Rank: the first of them. The
 * shard serves on: serve again, or save it and give up. */
brv_status brv_server_serve(brv_server *server, double seconds, const brv_options *options);

/* Leaves: nobody waits for this worker any more, and a push that was not pulled is applied. Where this rank
 * serves too, it goes on until all workers have left or are gone. The server has ended then, and can only be
 * freed. BRV_ERR_TIMEOUT if the push was not answered within the timeout, or if nothing was heard for so long
 * of workers that have not left; BRV_ERR_PEER_LOST if the push may be lost. */
brv_status brv_server_leave(brv_server *server, const brv_options *options);

/* Copies what this worker has not pushed of a tensor's gradients to the n elements at out. */
brv_status brv_server_residual(brv_server *server, const char *name, float *out, size_t n);

/* Writes what this rank needs after a restart to the memory at out, and the number of bytes to *needed. If
 * that is more than bytes, BRV_ERR_ARGUMENT: nothing was written but *needed. */
brv_status brv_server_save(brv_server *server, void *out, size_t bytes, size_t *needed);

/* Says that the last state that this rank has saved can't be lost any more: its file has its final name, and
 * is on the disk. Workers then drop the pushes in it that they have kept (keep_pushes). Does nothing if no
 * shard was saved since the last call. */
brv_status brv_server_confirm_saved(brv_server *server);

/* What the shard of this rank has done. Begin with BRV_SERVER_STATISTICS_INIT. */
typedef struct brv_server_statistics {
    uint32_t size;
    uint32_t unused;
    uint64_t pushes;  /* applied */
    uint64_t refused; /* requests, and pushes of which entries were dropped */
    uint64_t reserved[5];
} brv_server_statistics;

#define BRV_SERVER_STATISTICS_INIT {sizeof(brv_server_statistics), 0, 0, 0, {0, 0, 0, 0, 0}}

/* BRV_ERR_ARGUMENT if this rank does not serve. Also after brv_server_leave. */
brv_status brv_server_get_statistics(brv_server *server, brv_server_statistics *statistics);

/* Stores where the shard of this rank begins among all elements, in the order of the tensors, and how many it
 * has. BRV_ERR_ARGUMENT if this rank does not serve. */
brv_status brv_server_shard(brv_server *server, size_t *first, size_t *n);

/* Copies the model of this rank's shard, as it is between two pushes, to the n elements at out. Errors are as
 * for brv_server_shard. */
brv_status brv_server_model(brv_server *server, float *out, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* BREVITY_H */
