/*
 * brevity.h - the C interface of Brevity, which averages gradients between processes, with compression.
 *
 * Ranks of a data-parallel program exchange gradients as sparse or low-rank messages over UCX, TCP or shared
 * memory. Error feedback keeps what is not sent and sends it later.
 *
 *     brv_group *group = NULL;
 *     brv_feedback *feedback = NULL;
 *     if (brv_group_from_env(&group) != BRV_OK) { fputs(brv_last_error(), stderr); return 1; }
 *     brv_all_reduce(group, gradient, gradient, n, BRV_F32, BRV_AVERAGE);
 *     brv_feedback_new(&feedback);
 *     brv_gtopk_all_reduce(group, feedback, gradient, n, 0.001);
 *     brv_barrier(group);
 *     brv_feedback_free(feedback);
 *     brv_group_free(group);
 *
 * Ranks       All ranks make the same calls on a group in the same order, with the same n, type, reduction,
 *             root and shape. A rank that makes another call gets BRV_ERR_MISMATCH, or BRV_ERR_TIMEOUT if no
 *             rank was waiting for it.
 * Blocking    Every call on a group that sends something (barrier to low_rank_all_reduce, exchange_average,
 *             from_env) blocks until it is done on this rank, fails, or the deadline passes (BREVITY_TIMEOUT
 *             in seconds, 300 by default; 60 for joining). It never hangs.
 * Ownership   The library uses memory that is passed to a call only until the call returns. Objects that a
 *             function makes belong to the caller, who frees them with the free function of the same prefix.
 *             Strings belong to the library.
 * NULL        NULL is refused with BRV_ERR_ARGUMENT, except in three cases: the free functions do nothing for
 *             NULL; an array of 0 elements may be NULL; brv_group_rank, _size and _transport return -1, -1
 *             and "". Pointers must be aligned for their type.
 * Results     brv_all_reduce, brv_gtopk_all_reduce, brv_low_rank_all_reduce and brv_exchange_average give the
 *             same bits on every rank, in any floating-point mode (rounding, flushed denormals) of the
 *             calling thread; the thread keeps its mode. A sum of brv_all_reduce that involves NaN is NaN on
 *             every rank, but its bits depend on the processor.
 * Threads     A group may be used from any thread, and by several at once as long as all ranks still make
 *             their calls in the same order. A feedback or an exchange is used by one thread at a time;
 *             another gets BRV_ERR_ARGUMENT. Free an object only when no thread uses it any more.
 *             brv_last_error is per thread. Do not cancel a thread (pthread_cancel) that is in a call.
 * Processes   In a forked child, calls that need a peer are refused with BRV_ERR_ARGUMENT if the parent made
 *             the group; the parent's job goes on. A child may free its copies of the parent's objects, and
 *             move exchanges and feedbacks to a group that it has made itself.
 * Errors      Functions that can fail return a brv_status, and leave a text in brv_last_error and a rank in
 *             brv_last_error_rank. BRV_ERR_ARGUMENT is returned before anything is sent: the other ranks do
 *             not know of it and still wait for this rank's call. After BRV_ERR_PEER_LOST, BRV_ERR_ABORTED,
 *             BRV_ERR_TIMEOUT, BRV_ERR_MISMATCH, BRV_ERR_PROTOCOL, and BRV_ERR_TRANSPORT that is due to lack
 *             of memory, the group is closed on all ranks: every further call fails with BRV_ERR_ABORTED or
 *             BRV_ERR_PEER_LOST. After BRV_ERR_NON_FINITE the group stays usable.
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
#define BRV_ABI_VERSION 1

/* The version of the library in use, for example "0.1.0". Never NULL; valid for the life of the process. */
const char *brv_version(void);

/* The ABI version of the library in use. A program that loads the library with dlopen must compare it with
 * BRV_ABI_VERSION before it calls anything else; for other programs the linker does so. */
uint32_t brv_abi_version(void);

/* ---- Errors -------------------------------------------------------------------------------------------- */

/* What a call returns. Numbers never change; new ones may be added, so treat everything except BRV_OK as a
 * failure. */
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
    /* A rank did not answer before the deadline, or did not join. The group is closed. Rank: the late rank.
     */
    BRV_ERR_TIMEOUT = 4,
    /* A rank made another call than this one; brv_last_error says what differs, if ranks have found out. The
     * group is closed. Rank: that rank if this one has met it, else -1. */
    BRV_ERR_MISMATCH = 5,
    /* A rank handed in NaN or infinity, or a sum overflowed. The same on every rank; gradients and
     * residuals do not contain the step (up to one rounding), and the group stays usable. Rank: the rank that
     * had the value, or that computed a sum of finite values and found it too large; -1 for a sum that all
     * ranks have computed. */
    BRV_ERR_NON_FINITE = 6,
    /* An environment variable is missing or invalid. */
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
    BRV_ERR_EXHAUSTED = 11
} brv_status;

/* The text of this thread's last failed call, in one line with the remedy; "" if none has failed. Calls that
 * succeed do not change it. Never NULL. Valid until the thread's next failed call, or its end. */
const char *brv_last_error(void);

/* The rank that this thread's last failed call was about (see brv_status), or -1 for no rank. Like the ranks
 * in texts, it is the number in the world: see brv_group_world_rank. */
int32_t brv_last_error_rank(void);

/* Prints the library's warnings on standard error from now on, one line each: those of the level in
 * BREVITY_LOG (off, error, warn, info, debug, trace; warn by default). brv_group_from_env does the same if
 * BREVITY_LOG is set. Otherwise the library prints nothing. Call it before the first group is made. */
brv_status brv_log_to_stderr(void);

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* The ranks of a job, or some of them (brv_group_split), for collective calls.
 *
 * Calls on different groups are independent: they may run at the same time, from several threads, and an
 * error closes only the group of its call. A lost rank closes all groups that it is a member of, and no
 * others.
 *
 * The ranks of a group are numbered from 0. The world is the group of all ranks of the job: their numbers
 * there are those that errors name. */
typedef struct brv_group brv_group;

/* Joins the job that the environment describes (set by `brevity run`, by a launcher, or by hand with
 * BREVITY_RANK, BREVITY_WORLD_SIZE, BREVITY_MASTER, and BREVITY_KEY or BREVITY_JOB) and stores its group in
 * *group. Blocks until all ranks have joined, at most for BREVITY_JOIN_TIMEOUT seconds (60 by default) and
 * 2 more to learn which rank is missing.
 * If the environment describes no job, the group has this process alone. On failure *group is NULL.
 *
 * BRV_ERR_ENVIRONMENT, BRV_ERR_TIMEOUT (naming the first missing rank), BRV_ERR_PROTOCOL,
 * BRV_ERR_TRANSPORT. */
brv_status brv_group_from_env(brv_group **group);

/* Makes a group of this process alone and stores it in *group: every call works, nothing is sent. */
brv_status brv_group_solo(brv_group **group);

/* This process's rank, from 0; -1 if group is NULL. */
int32_t brv_group_rank(const brv_group *group);

/* Ranks in the group, 1 or more; -1 if group is NULL. */
int32_t brv_group_size(const brv_group *group);

/* The name of the transport in use, for example "tcp"; "" if group is NULL. Never NULL, valid until the group
 * is freed. */
const char *brv_group_transport(const brv_group *group);

/* The number in the world of rank `rank` of the group; -1 if the group has no such rank, or is NULL. */
int32_t brv_group_world_rank(const brv_group *group, int32_t rank);

/* Sets how many seconds later calls on the group may take, instead of BREVITY_TIMEOUT: above 0, as 30 or 0.5.
 * Groups that are made of this one later begin with BREVITY_TIMEOUT again. Ranks may have different timeouts:
 * the first that passes closes the group. Sends nothing. May be called while another thread is in a call on
 * the group, which keeps its own. */
brv_status brv_group_set_timeout(brv_group *group, double seconds);

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
brv_status brv_group_split(brv_group *group, int32_t colour, int32_t key, brv_group **part);

/* Makes another group of the same ranks, for calls that are independent of those on this one: a library that
 * uses it does not disturb its caller, and two threads may each have their own. Stores it in *duplicate.
 * Errors are as for brv_group_split. */
brv_status brv_group_duplicate(brv_group *group, brv_group **duplicate);

/* Makes the groups for calls in two levels. *local gets the ranks that share memory with this one; *leaders
 * gets the first rank of each host, on those ranks, and NULL on others. A rank that shares no memory with
 * another (see BREVITY_SHARED_MEMORY) is a host of its own. After a failure both are NULL. Errors are as for
 * brv_group_split. */
brv_status brv_group_hosts(brv_group *group, brv_group **local, brv_group **leaders);

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
 * and all exchanges, and feedbacks that were used; the order does not matter. Other ranks then find this rank
 * lost: call brv_barrier before.
 *
 * A process may exit without freeing, also while another thread is in a call on the group: that call fails or
 * does not return. */
void brv_group_free(brv_group *group);

/* ---- Dense collectives --------------------------------------------------------------------------------- */

/* Element types. */
typedef enum brv_type {
    BRV_F32 = 1, /* float */
    BRV_F64 = 2, /* double */
    BRV_I32 = 3, /* int32_t */
    BRV_I64 = 4, /* int64_t */
    BRV_U32 = 5, /* uint32_t */
    BRV_U64 = 6, /* uint64_t */
    BRV_U8 = 7   /* uint8_t */
} brv_type;

/* How the elements of all ranks are combined. */
typedef enum brv_reduction {
    BRV_SUM = 1,     /* the sum; integers wrap */
    BRV_AVERAGE = 2, /* the sum divided by the number of ranks, once; BRV_F32 and BRV_F64 only */
    BRV_MAX = 3,     /* the largest; NaN where any is NaN */
    BRV_MIN = 4      /* the smallest; NaN where any is NaN */
} brv_reduction;

/* Waits until all ranks have called this. */
brv_status brv_barrier(brv_group *group);

/* Copies the n elements at data of rank root to all ranks. On the other ranks data need not be set before,
 * and is unspecified after an error. */
brv_status brv_broadcast(brv_group *group, void *data, size_t n, brv_type type, int32_t root);

/* Reduces the n elements at in over all ranks, to out on every rank.
 *
 * in == out is allowed and saves a copy; any other overlap is refused. After an error
 * other than BRV_ERR_ARGUMENT out is unspecified. in is never changed unless it is the same memory. NaN and
 * infinity are reduced like other values: they are not an error here.
 *
 * BRV_ERR_TRANSPORT if there is no memory for received data; a group of one needs none. */
brv_status brv_all_reduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                          brv_reduction reduction);

/* Gathers the n elements at own of every rank, in rank order: all has n * brv_group_size(group) elements,
 * which need not be set before. own and all must not overlap. After an error other than
 * BRV_ERR_ARGUMENT all is unspecified. */
brv_status brv_all_gather(brv_group *group, const void *own, void *all, size_t n, brv_type type);

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
 * rank loads each saved state, nothing is lost. */
brv_status brv_feedback_load_of(brv_feedback *feedback, brv_group *group, int32_t rank, const void *saved,
                                size_t bytes);

/* Moves the feedback to another group, with its residual: when a rank is lost, the others go on in a group
 * without it. All ranks of that group move theirs, in the same order, or use a new feedback; low rank starts
 * anew from its seed, because the ranks may be a step apart. Does nothing to a feedback that has not been
 * used yet. Sends nothing.
 *
 * The group without the lost rank must have been made before, with brv_group_split, since the old one is
 * closed; or the ranks join a new job (brv_group_from_env, with the variables of that job). */
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
 * been added to the residual: do not hand it in again. */
brv_status brv_gtopk_all_reduce(brv_group *group, brv_feedback *feedback, float *gradient, size_t n,
                                double density);

/* Averages the row-major matrix at gradient over all ranks by factors of the given rank, in place (PowerSGD:
 * Vogels et al., NeurIPS 2019).
 *
 * The input is gradient plus the residual; the result is an approximation of the average, the same on every
 * rank. What a rank's own projection misses stays in its residual. A matrix that factors would not shrink to
 * a half or less is averaged dense and leaves nothing in the residual. Costs two dense all-reduces, of rows *
 * rank and cols * rank elements.
 *
 * rank is 1 or more, usually 1 to 8. feedback must not be NULL. Errors are as for brv_gtopk_all_reduce. */
brv_status brv_low_rank_all_reduce(brv_group *group, brv_feedback *feedback, float *gradient, size_t rows,
                                   size_t cols,
                                   uint32_t rank);

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

/* Add a tensor to the list: its name (UTF-8, unique in the list; copied), its length, and how its gradients
 * travel.
 *
 *     dense     all of it; all dense tensors of an exchange travel together
 *     topk      every rank's largest density * n entries (at least one), gathered by all
 *     gtopk     as in brv_gtopk_all_reduce
 *     low_rank  as in brv_low_rank_all_reduce
 *
 * BRV_ERR_ARGUMENT if a value is out of range, if the name exists already, and if the list has ended. Sends
 * nothing; the first other call allocates the residuals, and fails with BRV_ERR_EXHAUSTED without memory. */
brv_status brv_exchange_add_dense(brv_exchange *exchange, const char *name, size_t n);
brv_status brv_exchange_add_topk(brv_exchange *exchange, const char *name, size_t n, double density);
brv_status brv_exchange_add_gtopk(brv_exchange *exchange, const char *name, size_t n, double density);
brv_status brv_exchange_add_low_rank(brv_exchange *exchange, const char *name, size_t rows, size_t cols,
                                     uint32_t rank);

/* Averages the gradients of all tensors over all ranks, in place. gradients has one pointer for each tensor,
 * in the order of the list, each to separate memory; tensors is the number of pointers.
 *
 * Errors are as for brv_gtopk_all_reduce, for all tensors together; the text names a tensor with a value that
 * is not finite. */
brv_status brv_exchange_average(brv_exchange *exchange, float *const *gradients, size_t tensors);

/* Changes the density of the topk or gtopk tensor of that name from the next average on, for instance during
 * warm-up. All ranks call it before the same average. BRV_ERR_ARGUMENT for a density out of range, and if
 * there is no such tensor: nothing has changed then. Sends nothing. */
brv_status brv_exchange_set_density(brv_exchange *exchange, const char *name, double density);

/* Copies the residual of the tensor of that name to the n elements at out, which need not be set before. n is
 * the tensor's length. A dense tensor's residual is 0 except after a failure. BRV_ERR_ARGUMENT if n differs,
 * or if there is no such tensor. Sends nothing. */
brv_status brv_exchange_residual(brv_exchange *exchange, const char *name, float *out, size_t n);

/* Like brv_feedback_saved_size, brv_feedback_save, brv_feedback_load and brv_feedback_load_of, for all
 * tensors of the list. The state must have been saved with the same list. Densities may differ, and stay as
 * they are. */
brv_status brv_exchange_saved_size(brv_exchange *exchange, size_t *bytes);
brv_status brv_exchange_save(brv_exchange *exchange, void *out, size_t bytes);
brv_status brv_exchange_load(brv_exchange *exchange, const void *saved, size_t bytes);
brv_status brv_exchange_load_of(brv_exchange *exchange, int32_t rank, const void *saved, size_t bytes);

/* Like brv_feedback_rejoin, for all tensors of the list. */
brv_status brv_exchange_rejoin(brv_exchange *exchange, brv_group *group);

#ifdef __cplusplus
}
#endif

#endif /* BREVITY_H */
