/* What dense collectives refuse, and what they do with the options of a call. */
#include "dense.h"
#include "dense_list.h"

enum { N = 4 };

static const entry *find(const char *name)
{
    size_t which;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++)
        if (strcmp(ALL[which].name, name) == 0)
            return &ALL[which];
    fprintf(stderr, "the list has no %s\n", name);
    exit(1);
}

/* Waiting and started, a call is refused before anything is sent, and its memory stays as it is. */
static void refuses(brv_group *group, const entry *entry, const arguments *a, const char *words)
{
    brv_request *request = (brv_request *)&request;

    CHECK_FAILS(entry->call(group, a, NULL, NULL), BRV_ERR_ARGUMENT, words);
    CHECK_FAILS(entry->call(group, a, &request, NULL), BRV_ERR_ARGUMENT, words);
    CHECK(request == NULL);
}

/* Each call with input and output refuses memory that overlaps in another way than its rule for calls in
 * place, and NULL, also without a name in the test for it. */
static void overlaps(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    int32_t memory[2 * N * (MOST_RANKS + 1)], before[2 * N * (MOST_RANKS + 1)];
    size_t lengths[MOST_RANKS], which, i;
    arguments a;

    for (i = 0; i < sizeof memory / sizeof *memory; i++)
        memory[i] = before[i] = (int32_t)i;
    for (i = 0; i < MOST_RANKS; i++)
        lengths[i] = N;
    memset(&a, 0, sizeof a);
    a.n = N, a.lengths = a.received = lengths, a.type = BRV_I32, a.reduction = BRV_SUM, a.root = rank;
    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        const entry *entry = &ALL[which];
        if (strcmp(entry->name, "barrier") == 0)
            continue;
        a.in = memory, a.out = NULL;
        refuses(group, entry, &a, " is NULL");
        a.out = memory, a.type = (brv_type)99;
        refuses(group, entry, &a, "type is 99");
        a.type = BRV_I32, a.n = SIZE_MAX / 2, lengths[rank] = SIZE_MAX / 2;
        a.out = memory + N * size;
        refuses(group, entry, &a, "check n");
        a.n = lengths[rank] = N;
        a.out = (char *)memory + 2;
        refuses(group, entry, &a, "expected a multiple of 4 bytes");
        if (entry->has_root) {
            a.out = memory, a.root = size;
            refuses(group, entry, &a, "root is ");
            a.root = rank;
        }
        if (entry->has_reduction) {
            a.out = memory, a.reduction = (brv_reduction)0;
            refuses(group, entry, &a, "reduction is 0");
            a.reduction = (brv_reduction)256;
            refuses(group, entry, &a, "reduction is 256, which is not registered");
            a.reduction = BRV_SUM, a.type = BRV_BYTES;
            refuses(group, entry, &a, "sum is not defined for bytes");
            a.type = BRV_I32;
        }
        if (strcmp(entry->name, "broadcast") == 0)
            continue;
        a.in = NULL, a.out = memory;
        refuses(group, entry, &a, " is NULL");
        for (a.in = memory + 1, a.out = memory; (int32_t *)a.out < memory + N; a.out = (int32_t *)a.out + 2)
            refuses(group, entry, &a, "overlap: pass separate memory, or ");
        if (entry->has_lengths) {
            a.out = memory + N * size, a.lengths = NULL;
            refuses(group, entry, &a, " is NULL");
            a.lengths = lengths;
        }
    }
    CHECK(memcmp(memory, before, sizeof memory) == 0);
}

/* Blocks of other ranks than one's own are no place for a call in place. */
static void places(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), other;
    int32_t memory[N * MOST_RANKS];
    size_t sent[MOST_RANKS], received[MOST_RANKS];
    arguments a;

    memset(&a, 0, sizeof a);
    memset(memory, 0, sizeof memory);
    a.n = N, a.type = BRV_I32, a.reduction = BRV_SUM, a.root = rank;
    for (other = 0; other < size; other++) {
        if (other == rank)
            continue;
        a.in = memory + N * other, a.out = memory;
        refuses(group, find("all_gather"), &a, "or this rank's block of all as own");
        refuses(group, find("gather"), &a, "or this rank's block of all as own");
        a.in = memory, a.out = memory + N * other;
        refuses(group, find("scatter"), &a, "or this rank's block of all as own");
        refuses(group, find("reduce_scatter"), &a, "or this rank's block of in as out");
    }
    for (other = 0; other < size; other++)
        sent[other] = received[other] = N;
    received[0] = N - 1, received[size - 1] += 1;
    if (size > 1) {
        a.in = a.out = memory, a.lengths = sent, a.received = received;
        refuses(group, find("all_to_all_v"), &a, "pass separate memory, or equal lists");
    }
    a.in = memory, a.out = memory + 1, a.lengths = sent, a.received = NULL;
    refuses(group, find("all_to_all_v"), &a, "received is NULL");
}

/* A chosen algorithm is taken, or refused with the names of those that fit; other calls have none. */
static void algorithms(brv_group *group)
{
    int32_t size = brv_group_size(group);
    brv_options options = BRV_OPTIONS_INIT;
    float values[1000], sums[1000];
    int i, taken = 0;

    for (options.algorithm = 0; options.algorithm <= BRV_ALGORITHM_SLOTS; options.algorithm++) {
        brv_status status;
        for (i = 0; i < 1000; i++)
            values[i] = (float)i, sums[i] = 5;
        status = brv_all_reduce(group, values, sums, 1000, BRV_F32, BRV_SUM, &options);
        taken += status == BRV_OK;
        CHECK(status == BRV_OK || (status == BRV_ERR_ARGUMENT && strstr(brv_last_error(), "choose ")));
        for (i = 0; i < 1000; i++)
            CHECK(sums[i] == (float)(status == BRV_OK ? size * i : 5));
    }
    CHECK(taken >= 4 && (size == 1 || taken < 15));
    options.algorithm = BRV_ALGORITHM_RING;
    CHECK_FAILS(brv_barrier(group, &options), BRV_ERR_ARGUMENT, "does not fit this barrier");
    CHECK_FAILS(brv_send(group, values, 1, BRV_F32, 0, 0, &options), BRV_ERR_ARGUMENT, "only dense");
    options.algorithm = BRV_ALGORITHM_DISSEMINATION;
    CHECK(brv_barrier(group, &options) == BRV_OK);
    options.algorithm = 15;
    CHECK_FAILS(brv_barrier(group, &options), BRV_ERR_ARGUMENT, "expected a brv_algorithm (0 to 14)");
}

/* Ranks that have different lists find out, and their group is closed: one rank gets this status, or all do
 * for -1. */
static void differs(brv_group *world, const char *name, brv_status expected, int32_t where)
{
    int32_t rank = brv_group_rank(world), size = brv_group_size(world), other;
    int32_t in[N * MOST_RANKS] = {0}, out[(N + 1) * MOST_RANKS];
    size_t lengths[MOST_RANKS], i;
    brv_group *group = NULL;
    brv_status status = BRV_OK;
    arguments a;

    CHECK(brv_group_duplicate(world, &group, NULL) == BRV_OK);
    for (other = 0; other < size; other++)
        lengths[other] = N;
    /* Rank 0 and the last rank differ, with equal sums. */
    if (rank == 0)
        lengths[0] = N - 1, lengths[size - 1] = N + 1;
    memset(&a, 0, sizeof a);
    a.in = in, a.out = out, a.lengths = a.received = lengths;
    a.type = BRV_I32, a.reduction = BRV_SUM;
    for (i = 0; i < 2; i++)
        if ((status = find(name)->call(group, &a, NULL, NULL)) != BRV_OK)
            break;
    CHECK(status == expected || (rank != where && where >= 0));
    CHECK(brv_barrier(group, NULL) != BRV_OK);
    brv_group_free(group);
}

int main(void)
{
    brv_group *group = join();

    CHECK(brv_group_size(group) <= MOST_RANKS);
    overlaps(group);
    places(group);
    algorithms(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    if (brv_group_size(group) > 1) {
        int32_t last = brv_group_size(group) - 1;
        differs(group, "reduce_scatter_v", BRV_ERR_MISMATCH, -1);
        differs(group, "all_gather_v", BRV_ERR_MISMATCH, -1);
        differs(group, "gather_v", BRV_ERR_PROTOCOL, 0);
        differs(group, "scatter_v", BRV_ERR_PROTOCOL, last);
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
