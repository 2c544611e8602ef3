/* What compressed collectives refuse, and how values that are not finite end them. */
#include "compressed.h"
#include "compressed_list.h"
#include <float.h>

static int32_t rank, size;
static float in[DIM], out[DIM], kept_vector[DIM];
static brv_sparse *sum, *kept, *all[MOST_RANKS];
static vector own;
static brv_low_rank *low_rank, *other_low_rank;
static brv_ok_topk *ok_topk, *other_ok_topk, *longer_ok_topk;
static const float *const matrices[] = {in};

/* Arguments that every collective takes. */
static arguments good(void)
{
    arguments a;

    memset(&a, 0, sizeof a);
    a.indices = own.indices, a.values = own.values, a.count = own.count, a.dim = DIM, a.k = a.limit = K;
    a.format = BRV_VALUES_F16, a.sum = sum, a.kept = kept, a.all = all;
    a.in = in, a.out = out, a.kept_vector = kept_vector, a.n = DIM;
    a.low_rank = low_rank, a.matrices = matrices, a.tensors = 1;
    a.ok_topk = ok_topk, a.draw = BRV_DRAW_BLOCK, a.block = 64, a.leader_sum = BRV_LEADER_SUM_GTOPK;
    return a;
}

/* Waiting and started, a call is refused before anything is sent. */
static void refuses(brv_group *group, const entry *entry, arguments a, const char *words)
{
    brv_request *request = (brv_request *)&request;

    CHECK_FAILS(entry->call(group, &a, NULL, NULL), BRV_ERR_ARGUMENT, words);
    CHECK_FAILS(entry->call(group, &a, &request, NULL), BRV_ERR_ARGUMENT, words);
    CHECK(request == NULL);
}

#define REFUSES(words, change)              \
    do {                                    \
        arguments a = good();               \
        change;                             \
        refuses(group, entry, a, words);    \
    } while (0)

static int is_named(const entry *entry, const char *name)
{
    return strcmp(entry->name, name) == 0;
}

/* A length or a limit that does not fit is refused by that of a state, or by that of the call. */
static void limits(brv_group *group, const entry *entry)
{
    static uint32_t indices[2 * K + 1] = {1, 5, 6};
    int has_k = is_named(entry, "gtopk_all_reduce");

    if (is_named(entry, "ok_topk_all_reduce")) {
        REFUSES("dim is 2, expected 700, that of ok_topk", a.dim = 2);
        REFUSES("expected at most 2 k of ok_topk, 120", (a.indices = indices, a.count = 2 * K + 1));
        REFUSES("ok_topk is NULL", a.ok_topk = NULL);
        return;
    }
    REFUSES("expected at most dim, 2", (a.indices = indices, a.count = 3, a.dim = 2));
    REFUSES("expected at most dim, 0", (a.count = 1, a.dim = 0));
    REFUSES("4294967297", (a.count = 0, a.dim = (size_t)UINT32_MAX + 2));
    REFUSES(has_k ? "expected at most k, 2" : "expected at most limit, 2", (a.count = 3, a.limit = a.k = 2));
    REFUSES(has_k ? "expected at most k, 0" : "expected at most limit, 0", (a.count = 1, a.limit = a.k = 0));
    if (has_k)
        REFUSES("put_back is 3", a.put_back = (brv_put_back)3);
}

static void entries(brv_group *group, const entry *entry)
{
    uint32_t indices[3] = {1, 5, 5};
    int needs_kept = is_named(entry, "gtopk_all_reduce") || is_named(entry, "ok_topk_all_reduce");
    void *crooked = (char *)own.values + 1;

    REFUSES("indices is NULL", a.indices = NULL);
    REFUSES("values is NULL", a.values = NULL);
    REFUSES("multiple of 4", a.values = crooked);
    REFUSES("position 2 does not rise", (a.indices = indices, a.count = 3));
    indices[2] = DIM;
    REFUSES("index 700 at position 2 is out of range", (a.indices = indices, a.count = 3));
    limits(group, entry);
    REFUSES("format is 13, expected a brv_values (0 to 12, or 16)", a.format = (brv_values)13);
    if (entry->has_kept) {
        REFUSES("sum is NULL", a.sum = NULL);
        REFUSES("kept is NULL, expected a brv_sparse", a.kept = NULL);
        REFUSES("kept is in use by another call: give each result its own", a.kept = sum);
        if (needs_kept)
            REFUSES("kept is NULL", (a.kept = NULL, a.format = BRV_VALUES_F32));
    } else {
        brv_sparse *last = all[size - 1];
        REFUSES("all is NULL", a.all = NULL);
        all[size - 1] = NULL;
        REFUSES("] is NULL", (void)a);
        all[size - 1] = last;
    }
}

static void vectors(brv_group *group, const entry *entry)
{
    REFUSES("in is NULL", a.in = NULL);
    REFUSES("check n", (a.n = SIZE_MAX / 2, a.block = SIZE_MAX));
    /* More in compressed_hosts.c. */
    if (is_named(entry, "hierarchical_all_reduce"))
        return;
    if (entry->has_output) {
        REFUSES("out is NULL", a.out = NULL);
        REFUSES("in and out overlap: pass separate memory, or in == out", (a.in = out + 1, a.n = 10));
    } else {
        REFUSES("draw is 3, expected a brv_draw (1 or 2)", a.draw = (brv_draw)3);
        REFUSES("draw is 0", a.draw = (brv_draw)0);
        REFUSES("sum is NULL", a.sum = NULL);
        REFUSES("4294967297", a.n = (size_t)UINT32_MAX + 2);
    }
    if (is_named(entry, "block_all_reduce")) {
        REFUSES("block is 0, expected 1 or more", a.block = 0);
        REFUSES("fewer than 2^32 blocks", (a.n = (size_t)UINT32_MAX + 1, a.block = 1));
    }
    if (!entry->has_format)
        return;
    REFUSES("format is 8, expected a brv_values (0 to 7 or 9 to 12)", a.format = BRV_VALUES_F32_PACKED);
    REFUSES("kept is NULL", a.kept_vector = NULL);
    REFUSES("out and kept overlap", a.kept_vector = out + 1);
    REFUSES("in and kept overlap", a.kept_vector = in);
}

static void factors(brv_group *group, const entry *entry)
{
    const float *const none[] = {NULL};

    REFUSES("low_rank is NULL", a.low_rank = NULL);
    REFUSES("matrices is NULL", a.matrices = NULL);
    REFUSES("matrices[0] is NULL", a.matrices = none);
    REFUSES("tensors is 2, expected 1", a.tensors = 2);
    CHECK_FAILS(brv_low_rank_add(low_rank, 3, 3, 0, 1), BRV_ERR_ARGUMENT, "rank is 0");
    CHECK_FAILS(brv_low_rank_add(low_rank, SIZE_MAX, 3, 1, 1), BRV_ERR_ARGUMENT, "x 3");
    CHECK_FAILS(brv_low_rank_mean(low_rank, 0, out, DIM), BRV_ERR_ARGUMENT, "low_rank has no factors");
    CHECK_FAILS(brv_low_rank_mean(low_rank, 1, out, DIM), BRV_ERR_ARGUMENT, "expected less than 1");
    CHECK_FAILS(brv_low_rank_own(low_rank, 0, out, DIM - 1), BRV_ERR_ARGUMENT, "n is 699, expected 20 * 35");
    CHECK_FAILS(brv_low_rank_own(low_rank, 0, NULL, DIM), BRV_ERR_ARGUMENT, "out is NULL");
    CHECK_FAILS(brv_low_rank_warm(low_rank), BRV_ERR_ARGUMENT, "low_rank has no factors");
    CHECK_FAILS(brv_low_rank_new(NULL), BRV_ERR_ARGUMENT, "low_rank is NULL");
    brv_low_rank_free(NULL);
}

static void refused(brv_group *group)
{
    brv_options algorithm = BRV_OPTIONS_INIT;
    float untouched[DIM];
    size_t which, count, i;

    algorithm.algorithm = BRV_ALGORITHM_BRUCK;
    for (i = 0; i < DIM; i++)
        in[i] = 1, out[i] = kept_vector[i] = untouched[i] = (float)i;
    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        const entry *entry = &ALL[which];
        arguments a = good();
        if (entry->has_entries)
            entries(group, entry);
        else if (entry->has_vector)
            vectors(group, entry);
        else
            factors(group, entry);
        CHECK_FAILS(entry->call(NULL, &a, NULL, NULL), BRV_ERR_ARGUMENT, "group is NULL");
        if (is_named(entry, "topk_all_reduce")) {
            algorithm.algorithm = BRV_ALGORITHM_RING;
            if (size > 1)
                CHECK_FAILS(entry->call(group, &a, NULL, &algorithm), BRV_ERR_ARGUMENT, "does not fit");
            algorithm.algorithm = BRV_ALGORITHM_BRUCK;
        } else {
            CHECK_FAILS(entry->call(group, &a, NULL, &algorithm), BRV_ERR_ARGUMENT, "options.algorithm");
        }
    }
    CHECK(memcmp(out, untouched, sizeof out) == 0);
    CHECK(memcmp(kept_vector, untouched, sizeof kept_vector) == 0);
    CHECK(brv_sparse_count(sum, &count, NULL) == BRV_OK && count == 0);
    CHECK_FAILS(brv_sparse_new(NULL), BRV_ERR_ARGUMENT, "sparse is NULL");
    CHECK_FAILS(brv_sparse_count(NULL, &count, NULL), BRV_ERR_ARGUMENT, "sparse is NULL");
    CHECK_FAILS(brv_sparse_count(sum, NULL, NULL), BRV_ERR_ARGUMENT, "count is NULL");
    CHECK_FAILS(brv_sparse_read(sum, NULL, NULL, 0, NULL), BRV_ERR_ARGUMENT, "count is NULL");
    CHECK_FAILS(brv_sparse_add_to(sum, 1, out, DIM), BRV_ERR_ARGUMENT, "n is 700, expected 0");
    brv_sparse_free(NULL);
}

/* Nothing at all is summed as well. */
static void nothing(brv_group *group)
{
    size_t which, count, dim;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        arguments a = good();
        a.count = a.k = a.limit = a.n = 0;
        a.dim = is_named(&ALL[which], "ok_topk_all_reduce") ? DIM : 0;
        a.indices = NULL, a.values = NULL, a.in = a.out = a.kept_vector = NULL;
        CHECK(ALL[which].call(group, &a, NULL, NULL) == BRV_OK);
        a.dim = DIM;
        CHECK(ALL[which].call(group, &a, NULL, NULL) == BRV_OK);
        if (ALL[which].has_entries && ALL[which].has_kept)
            CHECK(brv_sparse_count(sum, &count, &dim) == BRV_OK && count == 0 && dim == DIM);
    }
}

/* Objects of a started call are in use until it has ended. Rank 0 starts it before the others, so that it has
 * not ended yet. */
static void in_use(brv_group *group)
{
    brv_request *request = NULL, *second = NULL;
    arguments a = good();
    int32_t token = 0, other;
    size_t count;

    if (rank > 0)
        CHECK(brv_recv(group, &token, 1, BRV_I32, 0, 0, NULL, NULL) == BRV_OK);
    CHECK(ALL[0].call(group, &a, &request, NULL) == BRV_OK);
    if (rank == 0 && size > 1) {
        CHECK_FAILS(ALL[0].call(group, &a, NULL, NULL), BRV_ERR_ARGUMENT, "sum is in use by a call that was");
        a.sum = all[0];
        CHECK_FAILS(ALL[0].call(group, &a, &second, NULL), BRV_ERR_ARGUMENT, "kept is in use by a call");
        CHECK_FAILS(brv_sparse_count(sum, &count, NULL), BRV_ERR_ARGUMENT, "wait for its request");
        CHECK_FAILS(brv_sparse_add_to(kept, 1, out, DIM), BRV_ERR_ARGUMENT, "wait for its request");
        for (other = 1; other < size; other++)
            CHECK(brv_send(group, &token, 1, BRV_I32, other, 0, NULL) == BRV_OK);
    }
    ends_with(request, BRV_OK);
    CHECK(brv_sparse_count(sum, &count, NULL) == BRV_OK && count > 0);
}

/* A value of one rank that is not finite: the same error on all, and the results stay as they were. */
static void not_finite(brv_group *group)
{
    vector before[2], after[2];
    int32_t culprit;
    size_t which;
    int is_started, what;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++)
        for (culprit = 0; culprit < size; culprit++)
            for (is_started = 0; is_started < 2; is_started++)
                for (what = 0; what < 2; what++) {
                    arguments a = good();
                    vector bad = own;
                    brv_request *request = NULL;
                    brv_status status;
                    if (rank == culprit)
                        bad.values[3] = in[3] = what ? INFINITY : NAN;
                    a.values = bad.values;
                    read_sparse(sum, &before[0]);
                    read_sparse(kept, &before[1]);
                    status = ALL[which].call(group, &a, is_started ? &request : NULL, NULL);
                    if (is_started) {
                        CHECK(status == BRV_OK);
                        status = brv_request_wait(request, BRV_FOREVER);
                    }
                    CHECK(status == BRV_ERR_NON_FINITE && brv_last_error_rank() == culprit);
                    CHECK(strstr(brv_last_error(), "finite") != NULL);
                    brv_request_free(request);
                    read_sparse(sum, &after[0]);
                    read_sparse(kept, &after[1]);
                    CHECK(after[0].count == before[0].count && after[1].count == before[1].count);
                    CHECK(memcmp(after[0].values, before[0].values, after[0].count * sizeof(float)) == 0);
                    in[3] = 1;
                }
}

/* Sums that are too large, of finite values, are found by all ranks too. */
static void overflow(brv_group *group)
{
    uint32_t index = 5;
    float huge = FLT_MAX;
    size_t which;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        arguments a = good();
        int adds = ALL[which].has_kept;
        if (is_named(&ALL[which], "low_rank_all_reduce"))
            continue;
        adds |= is_named(&ALL[which], "random_k_all_reduce") || is_named(&ALL[which], "block_all_reduce");
        a.indices = &index, a.values = &huge, a.count = 1, a.format = BRV_VALUES_F32;
        a.k = DIM;
        in[5] = huge;
        CHECK(ALL[which].call(group, &a, NULL, NULL) ==
              (adds && size > 1 ? BRV_ERR_NON_FINITE : BRV_OK));
        in[5] = 1;
    }
}

/* As pairs, values may be anything. */
static void any_values(brv_group *group)
{
    uint32_t index = 4;
    float odd = NAN;
    vector entries;

    CHECK(brv_sparse_all_gather(group, &index, &odd, 1, DIM, K, BRV_VALUES_F32, all, NULL) == BRV_OK);
    read_sparse(all[size - 1], &entries);
    CHECK(entries.count == 1 && entries.indices[0] == 4 && isnan(entries.values[0]));
}

/* Ranks that differ in what must be the same find out, and the group is closed. */
static void differs(brv_group *world, const entry *entry, void (*change)(arguments *a))
{
    arguments a = good();
    brv_group *group = NULL;

    CHECK(brv_group_duplicate(world, &group, NULL) == BRV_OK);
    if (rank == 0)
        change(&a);
    CHECK(entry->call(group, &a, NULL, NULL) != BRV_OK || brv_barrier(group, NULL) != BRV_OK);
    brv_group_free(group);
}

static void other_format(arguments *a)
{
    a->format = BRV_VALUES_BF16;
}

static void other_limit(arguments *a)
{
    a->k = a->limit = K + 1, a->ok_topk = other_ok_topk;
}

static void other_length(arguments *a)
{
    a->dim = DIM + 1, a->n = DIM - 1, a->low_rank = other_low_rank, a->ok_topk = longer_ok_topk;
}

static void other_rule(arguments *a)
{
    a->put_back = BRV_PUT_BACK_PUBLISHED, a->draw = BRV_DRAW_SCATTERED, a->block = 63;
}

static void other_step(arguments *a)
{
    a->step++;
}

static void all_differ(brv_group *group)
{
    size_t which;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        differs(group, &ALL[which], other_length);
        if (ALL[which].has_format)
            differs(group, &ALL[which], other_format);
        if (ALL[which].has_entries)
            differs(group, &ALL[which], other_limit);
        if (is_named(&ALL[which], "random_k_all_reduce"))
            differs(group, &ALL[which], other_step);
        if (ALL[which].has_vector && !ALL[which].has_format && !is_named(&ALL[which], "vote_all_reduce"))
            differs(group, &ALL[which], other_rule);
    }
    differs(group, &ALL[0], other_rule);
}

/* A group that is freed ends the calls on it: what its objects had stays. */
static void group_is_freed(brv_group *world)
{
    brv_request *requests[2] = {NULL, NULL};
    float before[DIM], after[DIM];
    vector entries[2];
    brv_group *group = NULL;
    arguments a = good();

    read_sparse(sum, &entries[0]);
    CHECK(brv_low_rank_mean(low_rank, 0, before, DIM) == BRV_OK);
    CHECK(brv_group_duplicate(world, &group, NULL) == BRV_OK);
    if (rank == 0) {
        CHECK(ALL[0].call(group, &a, &requests[0], NULL) == BRV_OK);
        CHECK(brv_ilow_rank_all_reduce(group, low_rank, matrices, 1, &requests[1], NULL) == BRV_OK);
    }
    brv_group_free(group);
    if (rank == 0) {
        CHECK(brv_request_test(requests[0]) == BRV_ERR_ABORTED);
        CHECK(brv_request_test(requests[1]) == BRV_ERR_ABORTED);
        brv_request_free(requests[0]);
        brv_request_free(requests[1]);
    }
    read_sparse(sum, &entries[1]);
    CHECK(entries[0].count > 0 && entries[0].count == entries[1].count);
    CHECK(memcmp(entries[0].values, entries[1].values, entries[0].count * sizeof(float)) == 0);
    CHECK(brv_low_rank_mean(low_rank, 0, after, DIM) == BRV_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
}

/* The objects of a call that has not ended. */
static void may_be_freed(brv_group *group)
{
    brv_request *requests[3] = {NULL, NULL, NULL};
    arguments a = good();

    CHECK(brv_iok_topk_all_reduce(group, a.indices, a.values, a.count, DIM, ok_topk, BRV_VALUES_F32, all[0],
                                  all[1], &requests[2], NULL) == BRV_OK);
    CHECK(brv_igtopk_all_reduce(group, a.indices, a.values, a.count, DIM, K, BRV_PUT_BACK_CONSERVING,
                                BRV_VALUES_F32, sum, kept, &requests[0], NULL) == BRV_OK);
    CHECK(brv_ilow_rank_all_reduce(group, low_rank, matrices, 1, &requests[1], NULL) == BRV_OK);
    brv_sparse_free(sum);
    brv_sparse_free(kept);
    brv_low_rank_free(low_rank);
    brv_ok_topk_free(ok_topk);
    brv_sparse_free(all[0]);
    brv_sparse_free(all[1]);
    ends_with(requests[2], BRV_OK);
    ends_with(requests[0], BRV_OK);
    ends_with(requests[1], BRV_OK);
}

int main(void)
{
    brv_group *group = join();
    int32_t other;

    rank = brv_group_rank(group), size = brv_group_size(group);
    CHECK(size <= MOST_RANKS);
    sum = new_sparse(), kept = new_sparse();
    for (other = 0; other < MOST_RANKS; other++)
        all[other] = new_sparse();
    CHECK(brv_low_rank_new(&low_rank) == BRV_OK && brv_low_rank_new(&other_low_rank) == BRV_OK);
    CHECK(brv_low_rank_add(low_rank, 20, 35, 2, 1) == BRV_OK);
    CHECK(brv_low_rank_add(other_low_rank, 35, 20, 2, 1) == BRV_OK);
    CHECK(brv_ok_topk_new(group, DIM, K, &ok_topk) == BRV_OK);
    CHECK(brv_ok_topk_new(group, DIM, K + 1, &other_ok_topk) == BRV_OK);
    CHECK(brv_ok_topk_new(group, DIM + 1, K, &longer_ok_topk) == BRV_OK);
    entries_of(7, rank, &own);
    refused(group);
    nothing(group);
    in_use(group);
    not_finite(group);
    overflow(group);
    any_values(group);
    if (size > 1) {
        all_differ(group);
        CHECK(brv_gtopk_all_reduce(group, own.indices, own.values, own.count, DIM, K, BRV_PUT_BACK_CONSERVING,
                                   BRV_VALUES_F32, sum, kept, NULL) == BRV_OK);
        group_is_freed(group);
    }
    for (other = 2; other < MOST_RANKS; other++)
        brv_sparse_free(all[other]);
    may_be_freed(group);
    brv_ok_topk_free(other_ok_topk);
    brv_ok_topk_free(longer_ok_topk);
    brv_low_rank_free(other_low_rank);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
