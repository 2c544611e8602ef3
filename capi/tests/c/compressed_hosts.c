/* Hierarchical sums, waiting and started, against serial sums of small integers. The argument is the number
 * of ranks that each host is taken to have, one host after the other. With another argument, `short`, each
 * format is used in one way alone, and with one rule. */
#include "compressed.h"
#include "compressed_list.h"

enum { WAITING, STARTED, FREED, WAYS };

/* Entries of a sum: their values, and which there are. */
typedef struct merge {
    float values[DIM];
    char is_there[DIM];
} merge;

static int32_t rank, size, ranks_of_host;
/* The vectors of all ranks. */
static float given[MOST_RANKS][DIM];

static int32_t leader_of(int32_t of)
{
    return of / ranks_of_host * ranks_of_host;
}

/* Joins as a rank of its host. */
static brv_group *join_on_host(void)
{
    brv_config config = BRV_CONFIG_INIT;
    const char *own = getenv("BREVITY_RANK");
    brv_group *group = NULL, *local = NULL, *leaders = NULL;
    char name[32];

    CHECK(own != NULL);
    snprintf(name, sizeof name, "host-%d", (int)leader_of(atoi(own)));
    config.host_id = name;
    CHECK(brv_group_join(&config, &group) == BRV_OK);
    rank = brv_group_rank(group), size = brv_group_size(group);
    CHECK(brv_group_hosts(group, &local, &leaders, NULL) == BRV_OK);
    CHECK(brv_group_world_rank(local, 0) == leader_of(rank));
    brv_group_free(local);
    brv_group_free(leaders);
    return group;
}

static void begin(uint32_t seed)
{
    int32_t other;
    size_t i;

    for (other = 0; other < size; other++)
        for (i = 0; i < DIM; i++)
            given[other][i] = (float)number(seed, other, i, 100);
}

/* Keeps the K largest, of equal ones the first. */
static void keep_largest(merge *of)
{
    static merge all;
    size_t i, j;

    all = *of;
    for (i = 0; i < DIM; i++) {
        size_t larger = 0;
        for (j = 0; j < DIM && all.is_there[i] && larger < K; j++)
            if (all.is_there[j] && (fabsf(all.values[j]) > fabsf(all.values[i]) ||
                                    (fabsf(all.values[j]) == fabsf(all.values[i]) && j < i)))
                larger++;
        of->is_there[i] = all.is_there[i] && larger < K;
        of->values[i] = of->is_there[i] ? all.values[i] : 0;
    }
}

static void add(merge *into, const merge *from)
{
    size_t i;

    for (i = 0; i < DIM; i++) {
        into->values[i] += from->values[i];
        into->is_there[i] = into->is_there[i] || from->is_there[i];
    }
}

/* What the leader of a host selects, and what it does not. */
static void select_of(int32_t leader, merge *selected, float *left)
{
    int32_t other;
    size_t i;

    memset(selected->is_there, 1, sizeof selected->is_there);
    for (i = 0; i < DIM; i++)
        selected->values[i] = 0;
    for (other = leader; other < size && leader_of(other) == leader; other++)
        for (i = 0; i < DIM; i++)
            selected->values[i] += given[other][i];
    memcpy(left, selected->values, sizeof selected->values);
    keep_largest(selected);
    for (i = 0; i < DIM; i++)
        if (selected->is_there[i])
            left[i] = 0;
}

/* The sum of what all leaders select: all of it, or in a binomial tree of merges towards the first. Stores
 * also what this rank has not selected. */
static const float *serial_sum(brv_leader_sum leader_sum, float *left)
{
    static merge of_hosts[MOST_RANKS];
    static float other[DIM];
    int32_t host, distance, hosts = (size + ranks_of_host - 1) / ranks_of_host;

    memset(left, 0, sizeof other);
    for (host = 0; host < hosts; host++) {
        int32_t leader = host * ranks_of_host;
        select_of(leader, &of_hosts[host], leader == rank ? left : other);
    }
    for (distance = 1; distance < hosts; distance *= 2)
        for (host = 0; host + distance < hosts; host += 2 * distance) {
            add(&of_hosts[host], &of_hosts[host + distance]);
            if (leader_sum == BRV_LEADER_SUM_GTOPK)
                keep_largest(&of_hosts[host]);
        }
    return of_hosts[0].values;
}

/* Makes the call in one of the ways. What one leaves whose request is freed comes to its memory too. */
static void make(brv_group *group, const arguments *a, int way)
{
    brv_request *request = NULL;
    size_t count;

    CHECK(call_hierarchical_all_reduce(group, a, way == WAITING ? NULL : &request, NULL) == BRV_OK);
    if (way == STARTED)
        ends_with(request, BRV_OK);
    if (way != FREED)
        return;
    brv_request_free(request);
    while (brv_sparse_count(a->sum, &count, NULL) == BRV_ERR_ARGUMENT) {
        CHECK(strstr(brv_last_error(), "in use by a call that was started") != NULL);
        brv_group_progress(group);
    }
}

static void sums(brv_group *group, brv_leader_sum leader_sum, brv_put_back rule, brv_values format, int way)
{
    static float in[DIM], kept[DIM], sum[DIM], left[DIM];
    int is_exact = format == BRV_VALUES_F32 || format == BRV_VALUES_F32_PACKED, in_place = way % 2;
    int loses = leader_sum == BRV_LEADER_SUM_GTOPK && rule == BRV_PUT_BACK_PUBLISHED;
    const float *expected = serial_sum(leader_sum, left);
    vector entries;
    arguments a;
    int32_t other;
    size_t i;

    memset(&a, 0, sizeof a);
    memset(kept, 255, sizeof kept);
    memcpy(in, given[rank], sizeof in);
    memcpy(in_place ? kept : in, given[rank], sizeof in);
    a.in = in_place ? kept : in, a.kept_vector = kept, a.n = DIM, a.k = K, a.sum = new_sparse();
    a.leader_sum = leader_sum, a.put_back = rule, a.format = format;
    make(group, &a, way);
    read_sparse(a.sum, &entries);
    CHECK(entries.count <= K || leader_sum == BRV_LEADER_SUM_TOPK);
    to_dense(a.sum, sum);
    brv_sparse_free(a.sum);
    same_on_all_ranks(group, sum);
    CHECK(!is_exact || memcmp(sum, expected, sizeof sum) == 0);
    CHECK(memcmp(in, given[rank], sizeof in) == 0);
    for (i = 0; i < DIM; i++)
        CHECK(leader_of(rank) == rank || kept[i] == 0);
    for (i = 0; i < DIM && is_exact && leader_sum == BRV_LEADER_SUM_TOPK; i++)
        CHECK(kept[i] == left[i]);
    /* What is kept and the sum are together what all have handed in. */
    sum_over_ranks(group, kept);
    for (i = 0; i < DIM && !loses; i++) {
        float all = 0;
        for (other = 0; other < size; other++)
            all += given[other][i];
        CHECK(is_exact ? sum[i] + kept[i] == all : fabsf(sum[i] + kept[i] - all) < 1e-2f);
    }
}

/* In place, what was handed in stays there. */
static void a_failure_leaves_all(brv_group *group, brv_leader_sum leader_sum, int is_started)
{
    static float vector[DIM], before[DIM];
    brv_request *request = NULL;
    brv_status status;
    arguments a;

    memset(&a, 0, sizeof a);
    memcpy(vector, given[rank], sizeof vector);
    if (rank == size - 1)
        vector[7] = INFINITY;
    memcpy(before, vector, sizeof before);
    a.in = a.kept_vector = vector, a.n = DIM, a.k = K, a.leader_sum = leader_sum, a.sum = new_sparse();
    status = call_hierarchical_all_reduce(group, &a, is_started ? &request : NULL, NULL);
    if (is_started) {
        CHECK(status == BRV_OK);
        status = brv_request_wait(request, BRV_FOREVER);
    }
    CHECK(status == BRV_ERR_NON_FINITE && brv_last_error_rank() == size - 1);
    brv_request_free(request);
    CHECK(memcmp(vector, before, sizeof vector) == 0);
    brv_sparse_free(a.sum);
}

/* Arguments that the call takes. */
static arguments good(float *in, float *kept, brv_sparse *sum)
{
    arguments a;

    memset(&a, 0, sizeof a);
    a.in = in, a.kept_vector = kept, a.n = DIM, a.k = K, a.sum = sum;
    a.leader_sum = BRV_LEADER_SUM_GTOPK, a.format = BRV_VALUES_BF16;
    return a;
}

/* Waiting and started, a call is refused before anything is sent or written. */
static void refusals(brv_group *group)
{
    static float in[DIM], kept[DIM], untouched[DIM];
    brv_sparse *sum = new_sparse();
    brv_request *request = (brv_request *)&request;
    size_t count;

#define REFUSES(words, change)                                                                               \
    do {                                                                                                     \
        arguments a = good(in, kept, sum);                                                                   \
        change;                                                                                              \
        CHECK_FAILS(call_hierarchical_all_reduce(group, &a, NULL, NULL), BRV_ERR_ARGUMENT, words);           \
        CHECK_FAILS(call_hierarchical_all_reduce(group, &a, &request, NULL), BRV_ERR_ARGUMENT, words);       \
        CHECK(request == NULL);                                                                              \
    } while (0)
    memcpy(in, given[rank], sizeof in);
    REFUSES("in is NULL", a.in = NULL);
    REFUSES("kept is NULL", a.kept_vector = NULL);
    REFUSES("in and kept overlap: pass separate memory, or in == kept", (a.in = kept + 1, a.n = 10));
    REFUSES("leader_sum is 0, expected a brv_leader_sum (1 or 2)", a.leader_sum = (brv_leader_sum)0);
    REFUSES("leader_sum is 3", a.leader_sum = (brv_leader_sum)3);
    REFUSES("put_back is 3", a.put_back = (brv_put_back)3);
    REFUSES("format is 13, expected a brv_values (0 to 12, or 16)", a.format = (brv_values)13);
    REFUSES("sum is NULL", a.sum = NULL);
    REFUSES("4294967297", a.n = (size_t)UINT32_MAX + 2);
#undef REFUSES
    CHECK(memcmp(kept, untouched, sizeof kept) == 0);
    CHECK(brv_sparse_count(sum, &count, NULL) == BRV_OK && count == 0);
    brv_sparse_free(sum);
}

/* Ranks that differ in what must be the same find out. */
static void differences(brv_group *world)
{
    static float in[DIM], kept[DIM];
    brv_sparse *sum = new_sparse();
    int what;

    for (what = 0; what < 3; what++) {
        arguments a = good(in, kept, sum);
        brv_group *group = NULL;
        CHECK(brv_group_duplicate(world, &group, NULL) == BRV_OK);
        if (rank == 0 && what == 0)
            a.leader_sum = BRV_LEADER_SUM_TOPK;
        else if (rank == 0 && what == 1)
            a.put_back = BRV_PUT_BACK_PUBLISHED;
        else if (rank == 0)
            a.k++;
        CHECK(call_hierarchical_all_reduce(group, &a, NULL, NULL) != BRV_OK ||
              brv_barrier(group, NULL) != BRV_OK);
        brv_group_free(group);
    }
    brv_sparse_free(sum);
}

int main(int count, char **arguments)
{
    brv_group *group;
    int is_short = count == 3 && strcmp(arguments[2], "short") == 0, format, rule, way;

    CHECK(count == 2 || is_short);
    ranks_of_host = atoi(arguments[1]);
    CHECK(ranks_of_host > 0);
    group = join_on_host();
    CHECK(size <= MOST_RANKS);
    for (format = 0; format <= BRV_VALUES_ONE_BIT_COLUMNS; format++)
        for (way = 0; way < WAYS; way++) {
            if (is_short && way != format % WAYS)
                continue;
            begin((uint32_t)(WAYS * format + way));
            sums(group, BRV_LEADER_SUM_TOPK, BRV_PUT_BACK_CONSERVING, (brv_values)format, way);
            for (rule = 0; rule < 3; rule++)
                if (!is_short || rule == format / WAYS % 3)
                    sums(group, BRV_LEADER_SUM_GTOPK, (brv_put_back)rule, (brv_values)format, way);
        }
    for (way = 0; way < 2; way++) {
        a_failure_leaves_all(group, BRV_LEADER_SUM_TOPK, way);
        a_failure_leaves_all(group, BRV_LEADER_SUM_GTOPK, way);
    }
    refusals(group);
    if (size > 1)
        differences(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
