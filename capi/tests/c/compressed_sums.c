/* Ok-Topk, random K and block-sparse sums, waiting and started, against dense sums of small integers; and the
 * objects that go with them. With the argument `short`, Ok-Topk takes few steps in all formats but one. */
#include "compressed.h"
#include "compressed_list.h"

enum { WAITING, STARTED, FREED, WAYS };

static int32_t rank;

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

/* Makes a call in one of the ways. The result of one whose request is freed comes to its sum. */
static void make(brv_group *group, const char *name, const arguments *a, int way)
{
    brv_request *request = NULL;
    size_t count;

    CHECK(find(name)->call(group, a, way == WAITING ? NULL : &request, NULL) == BRV_OK);
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

/* The gradient of a step: about a quarter is not 0. */
static void gradient_of(uint32_t seed, float *gradient)
{
    size_t i;

    for (i = 0; i < DIM; i++)
        gradient[i] = number(seed + 1000, rank, i, 4) == 0 ? (float)number(seed, rank, i, 100) : 0;
}

/* The n largest magnitudes of a vector are those of its entries. */
static void are_the_largest(const float *dense, const vector *entries)
{
    char is_there[DIM] = {0};
    float least = INFINITY;
    size_t i;

    for (i = 0; i < entries->count; i++) {
        is_there[entries->indices[i]] = 1;
        least = fabsf(entries->values[i]) < least ? fabsf(entries->values[i]) : least;
    }
    for (i = 0; i < DIM; i++)
        CHECK(is_there[i] || fabsf(dense[i]) <= least);
}

static size_t not_zero(const float *dense)
{
    size_t i, count = 0;

    for (i = 0; i < DIM; i++)
        count += dense[i] != 0;
    return count;
}

/* Takes the state over into a new one. */
static brv_ok_topk *reloaded(brv_group *group, brv_ok_topk *ok_topk)
{
    unsigned char saved[1000];
    brv_ok_topk *other = NULL;
    size_t bytes;

    CHECK(brv_ok_topk_new(group, DIM, K, &other) == BRV_OK);
    CHECK(brv_ok_topk_saved_size(ok_topk, &bytes) == BRV_OK && bytes <= sizeof saved);
    CHECK(brv_ok_topk_save(ok_topk, saved, bytes) == BRV_OK);
    CHECK_FAILS(brv_ok_topk_load(other, saved, bytes), BRV_ERR_ARGUMENT, "saved state");
    CHECK(brv_ok_topk_set_periods(other, 3, 2, 4) == BRV_OK);
    CHECK_FAILS(brv_ok_topk_load(other, saved, bytes - 1), BRV_ERR_ARGUMENT, "saved state");
    CHECK(brv_ok_topk_load(other, saved, bytes) == BRV_OK);
    brv_ok_topk_free(ok_topk);
    return other;
}

/* One step with error feedback: the largest sums come, and the rest stays in residuals. */
static void step(brv_group *group, brv_ok_topk *ok_topk, float *residual, brv_values format, int way)
{
    float selected[DIM], expected[DIM], sum[DIM], kept[DIM];
    brv_sparse *both = new_sparse();
    vector entries;
    arguments a;
    size_t i;

    memset(&a, 0, sizeof a);
    a.sum = both, a.kept = new_sparse();
    CHECK(brv_ok_topk_select(ok_topk, residual, DIM, both) == BRV_OK);
    read_sparse(both, &entries);
    CHECK(entries.count <= 2 * K);
    CHECK(entries.count >= K / 2 || entries.count == not_zero(residual));
    are_the_largest(residual, &entries);
    to_dense(both, selected);
    memcpy(expected, selected, sizeof expected);
    sum_over_ranks(group, expected);
    CHECK(brv_sparse_clear_in(both, residual, DIM) == BRV_OK);
    for (i = 0; i < DIM; i++)
        CHECK(selected[i] == 0 || residual[i] == 0);
    /* The result replaces the entries that it is made of. */
    CHECK(brv_sparse_view(both, &a.indices, &a.values, &a.count) == BRV_OK && a.count == entries.count);
    a.dim = DIM, a.ok_topk = ok_topk, a.format = format;
    make(group, "ok_topk_all_reduce", &a, way);
    read_sparse(both, &entries);
    to_dense(both, sum);
    same_on_all_ranks(group, sum);
    CHECK(entries.count <= 2 * K);
    CHECK(entries.count >= K / 2 || entries.count == not_zero(expected));
    to_dense(a.kept, kept);
    CHECK(brv_sparse_add_to(a.kept, 1, residual, DIM) == BRV_OK);
    for (i = 0; i < entries.count && is_exact(format); i++)
        CHECK(entries.values[i] == expected[entries.indices[i]] && kept[entries.indices[i]] == 0);
    if (is_exact(format))
        are_the_largest(expected, &entries);
    sum_over_ranks(group, kept);
    for (i = 0; i < DIM; i++)
        CHECK(is_exact(format) ? sum[i] + kept[i] == expected[i]
                               : fabs(sum[i] + kept[i] - expected[i]) < 1e-1);
    brv_sparse_free(both);
    brv_sparse_free(a.kept);
}

static void ok_topk(brv_group *group, brv_values format, int most)
{
    float residual[DIM] = {0}, gradient[DIM];
    brv_ok_topk *state = NULL;
    int steps;
    size_t i;

    CHECK(brv_ok_topk_new(group, DIM, K, &state) == BRV_OK);
    CHECK(brv_ok_topk_set_periods(state, 3, 2, 4) == BRV_OK);
    for (steps = 0; steps < most; steps++) {
        gradient_of((uint32_t)(10 * (int)format + steps), gradient);
        for (i = 0; i < DIM; i++)
            residual[i] += gradient[i];
        step(group, state, residual, format, steps % WAYS);
        if (steps == 4)
            state = reloaded(group, state);
    }
    brv_ok_topk_free(state);
}

/* All ranks draw the same places, other ones in each step, and sum the values there. */
static void random_k(brv_group *group, brv_draw draw, size_t k, int way)
{
    float gradient[DIM], expected[DIM];
    vector first, second;
    arguments a;
    size_t i;

    gradient_of(77, gradient);
    memcpy(expected, gradient, sizeof expected);
    sum_over_ranks(group, expected);
    memset(&first, 0, sizeof first);
    memset(&a, 0, sizeof a);
    a.in = gradient, a.n = DIM, a.k = k, a.draw = draw, a.seed = 5, a.sum = new_sparse();
    for (a.step = 0; a.step < 3; a.step++) {
        second = first;
        make(group, "random_k_all_reduce", &a, way);
        read_sparse(a.sum, &first);
        CHECK(first.count == (k < DIM ? k : DIM));
        for (i = 0; i < first.count; i++)
            CHECK(first.values[i] == expected[first.indices[i]]);
        if (a.step > 0 && k < DIM)
            CHECK(memcmp(first.indices, second.indices, k * sizeof(uint32_t)) != 0);
        for (i = 1; i < first.count && draw == BRV_DRAW_BLOCK; i++)
            CHECK(first.indices[i] == first.indices[i - 1] + 1 ||
                  (first.indices[0] == 0 && first.indices[first.count - 1] == DIM - 1));
    }
    CHECK(brv_sparse_clear_in(a.sum, gradient, DIM) == BRV_OK);
    for (i = 0; i < first.count; i++)
        CHECK(gradient[first.indices[i]] == 0);
    brv_sparse_free(a.sum);
}

static void blocks(brv_group *group, size_t block, int is_started, int in_place)
{
    float in[DIM], out[DIM], expected[DIM];
    brv_request *request = NULL;
    arguments a;
    size_t i;

    gradient_of((uint32_t)block, expected);
    /* Of most blocks of 64 nothing is left. */
    for (i = 0; i < DIM; i++)
        in[i] = out[i] = expected[i] = i / 64 % 4 == (size_t)rank % 4 || i > 650 ? expected[i] : 0;
    sum_over_ranks(group, expected);
    memset(&a, 0, sizeof a);
    a.in = in_place ? out : in, a.out = out, a.n = DIM, a.block = block;
    if (!in_place)
        memset(out, 255, sizeof out);
    CHECK(find("block_all_reduce")->call(group, &a, is_started ? &request : NULL, NULL) == BRV_OK);
    if (is_started)
        ends_with(request, BRV_OK);
    same_on_all_ranks(group, out);
    for (i = 0; i < DIM; i++)
        CHECK(out[i] == expected[i]);
}

static void states_are_checked(brv_group *group)
{
    brv_ok_topk *state = NULL, *other = (brv_ok_topk *)&state;
    brv_sparse *sum = new_sparse();
    float values[DIM] = {0};
    size_t bytes;

    CHECK_FAILS(brv_ok_topk_new(NULL, DIM, K, &other), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(other == NULL);
    CHECK_FAILS(brv_ok_topk_new(group, DIM, K, NULL), BRV_ERR_ARGUMENT, "ok_topk is NULL");
    CHECK_FAILS(brv_ok_topk_new(group, (size_t)UINT32_MAX + 2, K, &other), BRV_ERR_ARGUMENT, "4294967297");
    CHECK(brv_ok_topk_new(group, DIM, K, &state) == BRV_OK);
    CHECK_FAILS(brv_ok_topk_set_periods(state, 1, 0, 1), BRV_ERR_ARGUMENT, "global_threshold is 0");
    CHECK_FAILS(brv_ok_topk_set_periods(NULL, 1, 1, 1), BRV_ERR_ARGUMENT, "ok_topk is NULL");
    CHECK_FAILS(brv_ok_topk_select(state, values, DIM - 1, sum), BRV_ERR_ARGUMENT, "n is 699, expected 700");
    CHECK_FAILS(brv_ok_topk_select(state, NULL, DIM, sum), BRV_ERR_ARGUMENT, "values is NULL");
    CHECK_FAILS(brv_ok_topk_select(state, values, DIM, NULL), BRV_ERR_ARGUMENT, "selected is NULL");
    values[DIM - 1] = NAN;
    CHECK_FAILS(brv_ok_topk_select(state, values, DIM, sum), BRV_ERR_ARGUMENT, "finite");
    CHECK_FAILS(brv_ok_topk_saved_size(state, NULL), BRV_ERR_ARGUMENT, "bytes is NULL");
    CHECK(brv_ok_topk_saved_size(state, &bytes) == BRV_OK && bytes > 3);
    CHECK_FAILS(brv_ok_topk_save(state, values, 3), BRV_ERR_ARGUMENT, "ask brv_ok_topk_saved_size");
    CHECK_FAILS(brv_ok_topk_load(state, values, 7), BRV_ERR_ARGUMENT, "saved state");
    brv_ok_topk_free(state);
    brv_ok_topk_free(NULL);
    brv_sparse_free(sum);
}

static void vectors_are_set_and_seen(void)
{
    static const uint32_t at[] = {3, 4, DIM - 1};
    static const float numbers[] = {1, -2, 3};
    float dense[DIM];
    brv_sparse *sparse = new_sparse();
    const uint32_t *indices = NULL;
    const float *values = NULL;
    size_t count = 9, dim, i;

    CHECK(brv_sparse_view(sparse, &indices, &values, &count) == BRV_OK && count == 0);
    CHECK_FAILS(brv_sparse_set(sparse, at, numbers, 2, 1), BRV_ERR_ARGUMENT, "at most dim, 1");
    CHECK_FAILS(brv_sparse_set(sparse, at, numbers, 3, DIM - 1), BRV_ERR_ARGUMENT, "index 699");
    CHECK_FAILS(brv_sparse_set(sparse, NULL, numbers, 1, DIM), BRV_ERR_ARGUMENT, "indices is NULL");
    CHECK(brv_sparse_count(sparse, &count, &dim) == BRV_OK && count == 0 && dim == 0);
    CHECK(brv_sparse_set(sparse, at, numbers, 3, DIM) == BRV_OK);
    CHECK(brv_sparse_view(sparse, &indices, &values, &count) == BRV_OK && count == 3);
    CHECK(memcmp(indices, at, sizeof at) == 0 && memcmp(values, numbers, sizeof numbers) == 0);
    CHECK_FAILS(brv_sparse_view(sparse, NULL, &values, &count), BRV_ERR_ARGUMENT, "indices is NULL");
    CHECK_FAILS(brv_sparse_view(sparse, &indices, NULL, &count), BRV_ERR_ARGUMENT, "values is NULL");
    CHECK_FAILS(brv_sparse_view(sparse, &indices, &values, NULL), BRV_ERR_ARGUMENT, "count is NULL");
    for (i = 0; i < DIM; i++)
        dense[i] = 5;
    CHECK_FAILS(brv_sparse_clear_in(sparse, dense, DIM - 1), BRV_ERR_ARGUMENT, "n is 699, expected 700");
    CHECK(brv_sparse_clear_in(sparse, dense, DIM) == BRV_OK);
    for (i = 0; i < DIM; i++)
        CHECK(dense[i] == (i == 3 || i == 4 || i == DIM - 1 ? 0 : 5));
    CHECK(brv_sparse_set(sparse, NULL, NULL, 0, 0) == BRV_OK);
    CHECK(brv_sparse_count(sparse, &count, &dim) == BRV_OK && count == 0 && dim == 0);
    brv_sparse_free(sparse);
}

int main(int count, char **arguments)
{
    brv_group *group = join();
    int is_short = count > 1 && strcmp(arguments[1], "short") == 0, format, way;

    rank = brv_group_rank(group);
    vectors_are_set_and_seen();
    states_are_checked(group);
    for (format = 0; format <= BRV_VALUES_ONE_BIT_COLUMNS; format++)
        ok_topk(group, (brv_values)format, is_short && format != BRV_VALUES_F16 ? WAYS : 9);
    for (way = 0; way < WAYS; way++) {
        random_k(group, BRV_DRAW_SCATTERED, 40, way);
        random_k(group, BRV_DRAW_BLOCK, 300, way);
        random_k(group, BRV_DRAW_SCATTERED, 2 * DIM, way);
        blocks(group, 1, way % 2, way / 2);
        blocks(group, 64, way % 2, way / 2);
        blocks(group, 699, way % 2, way / 2);
        blocks(group, SIZE_MAX, way % 2, way / 2);
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
