/* A parameter server: two workers and a dedicated server, or every rank both; alone, one rank is both. */
#define _DEFAULT_SOURCE
#include "job.h"

enum { TENSORS = 2, FIRST = 40, SECOND = 7, STEPS = 20 };

/* What a worker has handed in, and its state after the last step. */
static float handed_in[TENSORS][FIRST];
static char *state;
static size_t state_bytes;

static brv_server *make(brv_group *group, uint32_t servers)
{
    static const size_t first[] = {8, 5}, second[] = {SECOND};
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = NULL;

    config.method = BRV_SERVER_GRADIENT_DROPPING;
    config.density = 0.1;
    config.servers = servers;
    config.keep_pushes = 1;
    config.codec = BRV_CODEC_SMALLEST;
    CHECK(brv_server_new(group, &config, &server) == BRV_OK && server != NULL);
    CHECK(brv_server_add(server, "first", first, 2) == BRV_OK);
    CHECK(brv_server_add(server, "second", second, 1) == BRV_OK);
    CHECK(brv_server_add(server, "second", second, 1) == BRV_ERR_ARGUMENT);
    return server;
}

static void refuses(brv_group *group)
{
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = (brv_server *)&config;
    float values[FIRST] = {0};
    const float *pointer = values;

    CHECK(brv_server_new(group, NULL, &server) == BRV_ERR_ARGUMENT && server == NULL);
    config.method = 9;
    CHECK(brv_server_new(group, &config, &server) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "config.method is 9") != NULL);
    config.method = BRV_SERVER_DGS;
    config.reserved[6] = 1;
    CHECK(brv_server_new(group, &config, &server) == BRV_ERR_ARGUMENT);
    config.reserved[6] = 0;
    config.patience = -2;
    CHECK(brv_server_new(group, &config, &server) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "config.patience is -2") != NULL);
    config.patience = 60;
    config.codec = BRV_CODEC_BITMAP + 1;
    CHECK(brv_server_new(group, &config, &server) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "config.codec is 6") != NULL);
    config.codec = BRV_CODEC_BITMAP;
    config.density = 2;
    config.momentum = 0.5;
    CHECK(brv_server_new(group, &config, &server) == BRV_OK);
    CHECK(brv_server_push(server, &pointer, 1, 0, NULL) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "brv_server_begin") != NULL);
    CHECK(brv_server_begin(server, NULL, 0, NULL) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "density") != NULL);
    CHECK(brv_server_is_worker(server) == -1 && brv_server_is_worker(NULL) == -1);
    brv_server_free(server);
    brv_server_free(NULL);
}

/* The shards of all ranks are the whole model, as it was fetched. */
static void has_model(brv_group *group, brv_server *server, float parameters[TENSORS][FIRST])
{
    float elements[FIRST + SECOND];
    size_t first = 77, n = 77, i;
    brv_status status = brv_server_shard(server, &first, &n);

    if (status != BRV_OK) {
        CHECK(status == BRV_ERR_ARGUMENT && first == 77);
        CHECK(strstr(brv_last_error(), "does not serve") != NULL);
        CHECK(brv_server_model(server, elements, 1) == BRV_ERR_ARGUMENT);
        return;
    }
    CHECK(first == (FIRST + SECOND) * (size_t)brv_group_rank(group) / (size_t)brv_group_size(group));
    CHECK(brv_server_model(server, elements, n + 1) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_model(server, elements, n) == BRV_OK);
    for (i = 0; i < n; i++) {
        size_t place = first + i;
        CHECK(elements[i] == (place < FIRST ? parameters[0][place] : parameters[1][place - FIRST]));
    }
    CHECK(brv_server_shard(server, NULL, &n) == BRV_ERR_ARGUMENT);
}

/* What this worker has handed in is in the model, or in its residuals. */
static void works(brv_group *group, brv_server *server, int serves_too)
{
    brv_server_statistics statistics = BRV_SERVER_STATISTICS_INIT;
    static float parameters[2][FIRST], gradients[2][FIRST], residual[FIRST];
    float *places[TENSORS] = {parameters[0], parameters[1]};
    const float *slices[TENSORS] = {gradients[0], gradients[1]};
    const size_t counts[TENSORS] = {FIRST, SECOND};
    const char *names[TENSORS] = {"first", "second"};
    brv_server_step step = BRV_SERVER_STEP_INIT;
    brv_options options = within(60);
    float sums[FIRST + SECOND], *sum = sums;
    size_t tensor, i, needed = 0, again = 0;
    uint32_t number_of_step;

    memset(handed_in, 0, sizeof handed_in);
    CHECK(brv_server_push(server, slices, 1, TENSORS, &options) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "fetch") != NULL);
    CHECK(brv_server_fetch(server, places, TENSORS, &options) == BRV_OK);
    for (number_of_step = 0; number_of_step < STEPS; number_of_step++) {
        for (tensor = 0; tensor < TENSORS; tensor++) {
            for (i = 0; i < counts[tensor]; i++) {
                gradients[tensor][i] = (float)number(number_of_step, brv_group_rank(group), i + tensor, 40);
                handed_in[tensor][i] += gradients[tensor][i];
            }
        }
        if (number_of_step % 2 == 0) {
            CHECK(brv_server_take_step(server, slices, 1, places, TENSORS, &step, &options) == BRV_OK);
            CHECK(step.clock > 0 && step.bytes > 0);
        } else {
            CHECK(brv_server_push(server, slices, 1, TENSORS, &options) == BRV_OK);
            CHECK(brv_server_push(server, slices, 1, TENSORS, &options) == BRV_ERR_ARGUMENT);
            CHECK(brv_server_pull(server, places, TENSORS, NULL, &options) == BRV_OK);
        }
    }
    slices[0] = parameters[1];
    CHECK_FAILS(brv_server_take_step(server, slices, 1, places, TENSORS, &step, &options), BRV_ERR_ARGUMENT,
                "gradients and parameters overlap");
    slices[0] = gradients[0];
    gradients[1][3] = NAN;
    CHECK(brv_server_push(server, slices, 1, TENSORS, &options) == BRV_ERR_NON_FINITE);
    gradients[1][3] = 0;
    CHECK(brv_server_set_density(server, 0) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_set_density(server, 0.5) == BRV_OK);

    CHECK(brv_server_save(server, NULL, 0, &needed) == BRV_ERR_ARGUMENT && needed > 0);
    /* Nothing was saved: the pushes are still kept. */
    CHECK(brv_server_pull(server, places, TENSORS, NULL, &options) == BRV_OK);
    CHECK(brv_server_save(server, NULL, 0, &again) == BRV_ERR_ARGUMENT && again == needed);
    /* Once a shard is saved, the others hear of it. */
    CHECK(brv_barrier(group, &options) == BRV_OK);
    free(state);
    state_bytes = needed;
    state = malloc(needed + 1);
    CHECK(state != NULL && brv_server_save(server, state, needed, &needed) == BRV_OK);
    CHECK(brv_server_confirm_saved(server) == BRV_OK && brv_server_confirm_saved(NULL) == BRV_ERR_ARGUMENT);

    /* All pushes are applied: each was answered. */
    CHECK(brv_barrier(group, &options) == BRV_OK);
    CHECK(brv_server_fetch(server, places, TENSORS, &options) == BRV_OK);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        CHECK(brv_server_residual(server, names[tensor], residual, counts[tensor]) == BRV_OK);
        CHECK(brv_server_residual(server, names[tensor], residual, counts[tensor] + 1) == BRV_ERR_ARGUMENT);
        for (i = 0; i < counts[tensor]; i++) {
            *sum++ = handed_in[tensor][i] - residual[i];
        }
    }
    CHECK(brv_all_reduce(group, sums, sums, FIRST + SECOND, BRV_F32, BRV_SUM, &options) == BRV_OK);
    for (i = 0; i < FIRST + SECOND; i++) {
        float found = i < FIRST ? parameters[0][i] : parameters[1][i - FIRST];
        CHECK(found == -sums[i]);
    }
    has_model(group, server, parameters);
    CHECK(brv_server_leave(server, &options) == BRV_OK);
    CHECK(brv_server_leave(server, &options) == BRV_ERR_ARGUMENT);
    if (serves_too) {
        /* Its own, and those of all others, which have left. */
        CHECK(brv_server_get_statistics(server, &statistics) == BRV_OK);
        CHECK(statistics.pushes == STEPS * (uint64_t)brv_group_size(group) && statistics.refused == 0);
    } else {
        CHECK(brv_server_get_statistics(server, &statistics) == BRV_ERR_ARGUMENT);
    }
}

/* A server of the same settings begins from the states: what all have handed in is in the model, or in
 * residuals. Pushes that came to a shard after it was saved have gone back to theirs. */
static void resumes(brv_group *group, const float *const *zeros)
{
    static float parameters[2][FIRST], residual[FIRST];
    float *places[TENSORS] = {parameters[0], parameters[1]};
    const size_t counts[TENSORS] = {FIRST, SECOND};
    const char *names[TENSORS] = {"first", "second"};
    brv_options options = within(60);
    brv_server *server = make(group, 0);
    size_t tensor, i;
    float moved = 0;

    state[state_bytes - 5] ^= 1;
    CHECK(brv_server_resume(server, state, state_bytes) == BRV_ERR_ARGUMENT);
    CHECK(strstr(brv_last_error(), "saved state") != NULL);
    state[state_bytes - 5] ^= 1;
    CHECK(brv_server_resume(server, state, state_bytes - 1) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_resume(server, state, state_bytes + 1) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_resume(server, NULL, 9) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_resume(server, state, state_bytes) == BRV_OK);
    CHECK(brv_server_begin(server, zeros, TENSORS, &options) == BRV_OK);
    CHECK(brv_server_resume(server, state, state_bytes) == BRV_ERR_ARGUMENT);
    CHECK(brv_server_fetch(server, places, TENSORS, &options) == BRV_OK);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        float *sums = handed_in[tensor];
        size_t n = counts[tensor];

        CHECK(brv_server_residual(server, names[tensor], residual, n) == BRV_OK);
        CHECK(brv_all_reduce(group, residual, residual, n, BRV_F32, BRV_SUM, &options) == BRV_OK);
        CHECK(brv_all_reduce(group, sums, sums, n, BRV_F32, BRV_SUM, &options) == BRV_OK);
        for (i = 0; i < counts[tensor]; i++) {
            CHECK(residual[i] - parameters[tensor][i] == handed_in[tensor][i]);
            moved += parameters[tensor][i] * parameters[tensor][i];
        }
    }
    CHECK(moved > 0);
    CHECK(brv_server_leave(server, &options) == BRV_OK);
    brv_server_free(server);
}

static void serves(brv_group *group, brv_server *server)
{
    brv_server_statistics statistics = BRV_SERVER_STATISTICS_INIT;
    brv_options options = within(60);
    float sums[FIRST + SECOND] = {0};

    CHECK_FAILS(brv_server_residual(server, "first", sums, FIRST), BRV_ERR_ARGUMENT, "only serves");
    CHECK(brv_server_serve(server, 0.01, NULL) == BRV_PENDING);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    CHECK(brv_all_reduce(group, sums, sums, FIRST + SECOND, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    CHECK(brv_server_serve(server, BRV_FOREVER, &options) == BRV_OK);
    CHECK(brv_server_get_statistics(server, &statistics) == BRV_OK);
    CHECK(statistics.pushes == STEPS * (uint64_t)(brv_group_size(group) - 1) && statistics.refused == 0);
    CHECK(brv_server_fetch(server, NULL, 0, NULL) == BRV_ERR_ARGUMENT);
}

/* A rank that begins alone waits until the timeout, which closes that group and no other. */
static void waits_in_vain(brv_group *group, const float *const *parameters)
{
    brv_options options = within(0.1);
    brv_group *copy = NULL;

    CHECK(brv_group_duplicate(group, &copy, NULL) == BRV_OK);
    if (brv_group_rank(group) == 0) {
        brv_server *server = make(copy, 0);
        CHECK(brv_server_begin(server, parameters, TENSORS, &options) == BRV_ERR_TIMEOUT);
        brv_server_free(server);
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(copy);
}

int main(void)
{
    static float zeros[FIRST];
    const float *parameters[TENSORS] = {zeros, zeros};
    brv_group *group = NULL;
    uint32_t servers;

    CHECK(brv_group_join(NULL, &group) == BRV_OK);
    refuses(group);
    for (servers = 0; servers < (brv_group_size(group) > 1 ? 2 : 1); servers++) {
        brv_server *server = make(group, servers);
        /* A call that is refused can be corrected. */
        zeros[1] = NAN;
        CHECK(brv_server_begin(server, parameters, TENSORS, NULL) == BRV_ERR_NON_FINITE);
        CHECK_FAILS(brv_server_fetch(server, NULL, 0, NULL), BRV_ERR_ARGUMENT, "tensors is 0");
        zeros[1] = 0;
        CHECK(brv_server_begin(server, parameters, TENSORS, NULL) == BRV_OK);
        CHECK_FAILS(brv_server_begin(server, parameters, TENSORS, NULL), BRV_ERR_ARGUMENT, "begun already");
        if (brv_server_is_worker(server)) {
            works(group, server, servers == 0);
        } else {
            serves(group, server);
        }
        brv_server_free(server);
        if (servers == 0) {
            resumes(group, parameters);
        }
    }
    free(state);
    if (brv_group_size(group) > 1) {
        waits_in_vain(group, parameters);
    }
    brv_group_free(group);
    return 0;
}
