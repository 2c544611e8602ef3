/* Compressed collectives, waiting and started, against serial sums: in every format nothing is lost, and all
 * ranks get the same bits. */
#include "compressed.h"
#include "compressed_list.h"

static int32_t rank, size;
/* What all ranks hand in, and its sum. */
static vector local[MOST_RANKS];
static float expected[DIM];

static void begin(uint32_t seed)
{
    int32_t other;
    size_t i;

    for (i = 0; i < DIM; i++)
        expected[i] = 0;
    for (other = 0; other < size; other++) {
        entries_of(seed, other, &local[other]);
        for (i = 0; i < local[other].count; i++)
            expected[local[other].indices[i]] += local[other].values[i];
    }
}

static int is_exact(brv_values format)
{
    return format == BRV_VALUES_F32 || format == BRV_VALUES_F32_PACKED;
}

static const entry *find(const char *name)
{
    size_t which;

    for (which = 0; which < sizeof ALL / sizeof *ALL; which++)
        if (strcmp(ALL[which].name, name) == 0)
            return &ALL[which];
    fprintf(stderr, "the list has no %s\n", name);
    exit(1);
}

/* A call on this rank's entries, for which the caller says in which way it is made: waiting, started, or
 * started with a request that is freed at once. */
enum { WAITING, STARTED, FREED, WAYS };

static void make(brv_group *group, const char *name, arguments *a, const brv_options *options, int way)
{
    vector copy = local[rank];
    brv_request *request = NULL;
    size_t count;

    a->indices = copy.indices, a->values = copy.values, a->count = copy.count;
    a->dim = DIM, a->limit = a->k = K;
    CHECK(find(name)->call(group, a, way == WAITING ? NULL : &request, options) == BRV_OK);
    /* Entries are copied. */
    memset(&copy, 255, sizeof copy);
    if (way == STARTED) {
        ends_with(request, BRV_OK);
    } else if (way == FREED) {
        const brv_sparse *result = a->sum != NULL ? a->sum : a->all[size - 1];
        brv_request_free(request);
        while (brv_sparse_count(result, &count, NULL) == BRV_ERR_ARGUMENT) {
            CHECK(strstr(brv_last_error(), "in use by a call that was started") != NULL);
            brv_group_progress(group);
        }
    }
}

/* The result and what all ranks keep are together what all have handed in. */
static void loses_nothing(brv_group *group, float *result, const brv_sparse *kept, brv_values format)
{
    float waiting[DIM];
    size_t i;

    to_dense(kept, waiting);
    sum_over_ranks(group, waiting);
    for (i = 0; i < DIM; i++) {
        CHECK(fabs(result[i] + waiting[i] - expected[i]) < 1e-2);
        CHECK(!is_exact(format) || result[i] + waiting[i] == expected[i]);
    }
}

static void topk(brv_group *group, brv_values format, int way, uint32_t algorithm)
{
    brv_options options = BRV_OPTIONS_INIT;
    float sum[DIM];
    vector kept;
    arguments a;

    memset(&a, 0, sizeof a);
    options.algorithm = algorithm, options.timeout = 60;
    a.format = format, a.sum = new_sparse(), a.kept = new_sparse();
    make(group, "topk_all_reduce", &a, &options, way);
    to_dense(a.sum, sum);
    same_on_all_ranks(group, sum);
    loses_nothing(group, sum, a.kept, format);
    read_sparse(a.kept, &kept);
    CHECK(!is_exact(format) || (kept.count == 0 && memcmp(sum, expected, sizeof sum) == 0));
    brv_sparse_free(a.sum);
    brv_sparse_free(a.kept);
}

static void reduce_scatter(brv_group *group, brv_values format, int way)
{
    size_t chunk = (DIM + (size_t)size - 1) / (size_t)size, i;
    float sum[DIM];
    vector entries;
    arguments a;

    memset(&a, 0, sizeof a);
    a.format = format, a.sum = new_sparse(), a.kept = new_sparse();
    make(group, "sparse_reduce_scatter", &a, NULL, way);
    read_sparse(a.sum, &entries);
    for (i = 0; i < entries.count; i++)
        CHECK(entries.indices[i] / chunk == (size_t)rank);
    to_dense(a.sum, sum);
    sum_over_ranks(group, sum);
    loses_nothing(group, sum, a.kept, format);
    CHECK(!is_exact(format) || memcmp(sum, expected, sizeof sum) == 0);
    brv_sparse_free(a.sum);
    brv_sparse_free(a.kept);
}

static void all_gather(brv_group *group, brv_values format, int way)
{
    brv_sparse *all[MOST_RANKS];
    float one[DIM];
    vector entries;
    arguments a;
    int32_t other;
    size_t i;

    memset(&a, 0, sizeof a);
    for (other = 0; other < size; other++)
        all[other] = new_sparse();
    a.format = format, a.all = all;
    make(group, "sparse_all_gather", &a, NULL, way);
    for (other = 0; other < size; other++) {
        read_sparse(all[other], &entries);
        CHECK(entries.count == local[other].count);
        for (i = 0; i < entries.count; i++)
            CHECK(entries.indices[i] == local[other].indices[i] &&
                  (!is_exact(format) || entries.values[i] == local[other].values[i]));
        to_dense(all[other], one);
        same_on_all_ranks(group, one);
        brv_sparse_free(all[other]);
    }
}

/* A running merge: the sum and which entries are there. */
typedef struct merge {
    float values[DIM];
    char is_there[DIM];
} merge;

/* Adds another and keeps the K largest, of equal ones the first. */
static void add(merge *into, const merge *from)
{
    static merge sum;
    size_t i, j;

    for (i = 0; i < DIM; i++) {
        sum.values[i] = into->values[i] + from->values[i];
        sum.is_there[i] = into->is_there[i] || from->is_there[i];
    }
    for (i = 0; i < DIM; i++) {
        size_t larger = 0;
        for (j = 0; j < DIM && sum.is_there[i] && larger < K; j++)
            if (sum.is_there[j] && (fabsf(sum.values[j]) > fabsf(sum.values[i]) ||
                                    (fabsf(sum.values[j]) == fabsf(sum.values[i]) && j < i)))
                larger++;
        into->is_there[i] = sum.is_there[i] && larger < K;
        into->values[i] = into->is_there[i] ? sum.values[i] : 0;
    }
}

/* What gTop-k gives: a binomial tree of merges towards rank 0. */
static const float *serial_gtopk(void)
{
    static merge merges[MOST_RANKS];
    int32_t other, distance;
    size_t i;

    memset(merges, 0, sizeof merges);
    for (other = 0; other < size; other++)
        for (i = 0; i < local[other].count; i++) {
            merges[other].values[local[other].indices[i]] = local[other].values[i];
            merges[other].is_there[local[other].indices[i]] = 1;
        }
    for (distance = 1; distance < size; distance *= 2)
        for (other = 0; other + distance < size; other += 2 * distance)
            add(&merges[other], &merges[other + distance]);
    return merges[0].values;
}

static void gtopk(brv_group *group, brv_values format, brv_put_back rule, int way)
{
    float sum[DIM], back[DIM], in_result[DIM] = {0};
    vector result;
    arguments a;
    size_t i;

    memset(&a, 0, sizeof a);
    a.format = format, a.put_back = rule, a.sum = new_sparse(), a.kept = new_sparse();
    make(group, "gtopk_all_reduce", &a, NULL, way);
    read_sparse(a.sum, &result);
    CHECK(result.count <= K);
    to_dense(a.sum, sum);
    same_on_all_ranks(group, sum);
    CHECK(!is_exact(format) || memcmp(sum, serial_gtopk(), sizeof sum) == 0);
    if (rule != BRV_PUT_BACK_PUBLISHED)
        loses_nothing(group, sum, a.kept, format);
    for (i = 0; i < result.count; i++)
        in_result[result.indices[i]] = 1;
    to_dense(a.kept, back);
    for (i = 0; i < local[rank].count && rule != BRV_PUT_BACK_MERGER_KEEPS; i++)
        if (!in_result[local[rank].indices[i]])
            CHECK(back[local[rank].indices[i]] == local[rank].values[i]);
    for (i = 0; i < DIM && is_exact(format); i++)
        if (rule == BRV_PUT_BACK_MERGER_KEEPS)
            CHECK(rank % 2 == 0 || back[i] == 0);
        else if (rule == BRV_PUT_BACK_PUBLISHED)
            CHECK(!in_result[i] || back[i] == 0);
    brv_sparse_free(a.sum);
    brv_sparse_free(a.kept);
}

static void dense_of(int32_t other, float *dense)
{
    size_t i;

    for (i = 0; i < DIM; i++)
        dense[i] = 0;
    for (i = 0; i < local[other].count; i++)
        dense[local[other].indices[i]] = local[other].values[i];
}

static void quantised(brv_group *group, brv_values format, int is_started, int in_place)
{
    float in[DIM], out[DIM], kept[DIM];
    brv_request *request = NULL;
    arguments a;
    size_t i;

    memset(&a, 0, sizeof a);
    dense_of(rank, in_place ? out : in);
    a.in = in_place ? out : in, a.out = out, a.n = DIM, a.format = format;
    a.kept_vector = format == BRV_VALUES_F32 && in_place ? NULL : kept;
    CHECK(find("quantised_all_reduce")->call(group, &a, is_started ? &request : NULL, NULL) == BRV_OK);
    if (is_started)
        ends_with(request, BRV_OK);
    same_on_all_ranks(group, out);
    if (format == BRV_VALUES_F32)
        CHECK(memcmp(out, expected, sizeof out) == 0);
    if (a.kept_vector == NULL)
        return;
    for (i = 0; i < DIM; i++)
        CHECK(format != BRV_VALUES_F32 || kept[i] == 0);
    sum_over_ranks(group, kept);
    for (i = 0; i < DIM; i++)
        CHECK(fabs(out[i] + kept[i] - expected[i]) < 1e-2);
}

static void vote(brv_group *group, int is_started, int in_place)
{
    float in[DIM], out[DIM];
    int votes[DIM] = {0};
    brv_request *request = NULL;
    int32_t other;
    arguments a;
    size_t i;

    memset(&a, 0, sizeof a);
    dense_of(rank, in_place ? out : in);
    a.in = in_place ? out : in, a.out = out, a.n = DIM;
    CHECK(find("vote_all_reduce")->call(group, &a, is_started ? &request : NULL, NULL) == BRV_OK);
    if (is_started)
        ends_with(request, BRV_OK);
    for (other = 0; other < size; other++)
        for (i = 0; i < local[other].count; i++)
            votes[local[other].indices[i]] +=
                (local[other].values[i] > 0) - (local[other].values[i] < 0);
    for (i = 0; i < DIM; i++)
        CHECK(out[i] == (float)((votes[i] > 0) - (votes[i] < 0)));
}

int main(int count, char **arguments)
{
    brv_group *group = join();
    int is_short = count > 1 && strcmp(arguments[1], "short") == 0, format, rule, way;
    uint32_t seed = 0;

    rank = brv_group_rank(group), size = brv_group_size(group);
    CHECK(size <= MOST_RANKS);
    for (format = 0; format <= BRV_VALUES_ONE_BIT_COLUMNS; format++)
        for (way = 0; way < WAYS; way++) {
            if (is_short && way != format % WAYS)
                continue;
            begin(seed++);
            for (rule = 0; rule < 3; rule++)
                gtopk(group, (brv_values)format, (brv_put_back)rule, way);
            topk(group, (brv_values)format, way, BRV_ALGORITHM_ANY);
            topk(group, (brv_values)format, way, BRV_ALGORITHM_BRUCK);
            topk(group, (brv_values)format, way, BRV_ALGORITHM_DIRECT);
            all_gather(group, (brv_values)format, way);
            reduce_scatter(group, (brv_values)format, way);
            if (format != BRV_VALUES_F32_PACKED)
                quantised(group, (brv_values)format, way % 2, way / 2);
            vote(group, way % 2, way / 2);
        }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
