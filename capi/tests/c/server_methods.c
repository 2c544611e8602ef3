/* The settings of a parameter server against a model of it: every rank works and serves, and takes its turn.
 * Every other step is one that does not block. */
#define _DEFAULT_SOURCE
#include "job.h"

enum { N = 96, STEPS = 5, MOST_RANKS = 4, TRAILER = 48, HEADER = 40 };

static const float RATE = 0.5f, MOMENTUM = 0.5f;

struct setting {
    const char *name;
    brv_server_config config;
    /* Values are rounded: only what all have pushed is known. */
    int is_rounded;
};

/* What shards and workers hold. */
static float model[N], squares[N];
static float velocity[MOST_RANKS][N], residual[MOST_RANKS][N], owed[MOST_RANKS][N], known[MOST_RANKS][N];
static float handed_in[N];
static int world_size;

static size_t shard_begin(int shard)
{
    return (size_t)N * (size_t)shard / (size_t)world_size;
}

static float gradient_of(uint32_t step, int worker, size_t i)
{
    /* Odd, so that it is not 0. */
    return (float)(2 * number(step + 1, worker, i, 20) + 1);
}

/* Marks the k largest of the elements from first to end, of equal ones those that come first. */
static size_t select_largest(const float *values, size_t first, size_t end, double density, int *is_selected)
{
    size_t k = (size_t)ceil(density * (double)(end - first)), count, i;

    for (i = first; i < end; i++) {
        is_selected[i] = 0;
    }
    for (count = 0; count < k; count++) {
        size_t best = end;
        for (i = first; i < end; i++) {
            int is_free = !is_selected[i] && values[i] != 0;
            if (is_free && (best == end || fabsf(values[i]) > fabsf(values[best]))) {
                best = i;
            }
        }
        if (best == end) {
            break;
        }
        is_selected[best] = 1;
    }
    return count;
}

/* The bytes of a sparse message whose indices are a bitmap. */
static size_t sparse_bytes(size_t n, size_t k)
{
    return HEADER + (n + 7) / 8 + 4 * k + TRAILER;
}

static float change_of(const brv_server_config *config, size_t i, float entry)
{
    if (config->rule == BRV_SERVER_ADAGRAD) {
        squares[i] += entry * entry;
        return -RATE * entry / (sqrtf(squares[i]) + (float)config->epsilon);
    }
    return config->method == BRV_SERVER_DGS ? -entry : -RATE * entry;
}

/* What a worker pushes of an element that is selected, and what it keeps. */
static float pushed(const brv_server_config *config, int worker, size_t i, int is_selected)
{
    float entry = residual[worker][i];

    if (config->method == BRV_SERVER_DGS) {
        if (!is_selected) {
            residual[worker][i] /= MOMENTUM;
        }
    } else if (is_selected) {
        velocity[worker][i] = residual[worker][i] = 0;
    }
    return is_selected ? entry : 0;
}

/* A push and its answer, at all shards. Returns the bytes of the messages. */
static size_t model_step(const brv_server_config *config, int worker, uint32_t step)
{
    double secondary = config->secondary_density == 0 ? config->density : config->secondary_density;
    int is_selected[N], shard, other;
    size_t bytes = 0, i;

    for (i = 0; i < N; i++) {
        float gradient = gradient_of(step, worker, i), *sum = &residual[worker][i];
        switch (config->method) {
        case BRV_SERVER_DGS:
            *sum = MOMENTUM * *sum + RATE * gradient;
            break;
        case BRV_SERVER_DGC:
            velocity[worker][i] = MOMENTUM * velocity[worker][i] + gradient;
            *sum += velocity[worker][i];
            break;
        case BRV_SERVER_ASGD:
            model[i] += change_of(config, i, gradient);
            break;
        default:
            *sum += gradient;
        }
    }
    for (shard = 0; shard < world_size; shard++) {
        size_t first = shard_begin(shard), end = shard_begin(shard + 1);
        if (config->method == BRV_SERVER_ASGD) {
            memcpy(known[worker] + first, model + first, (end - first) * sizeof(float));
            bytes += 2 * (4 * (end - first) + TRAILER);
            continue;
        }
        bytes += sparse_bytes(end - first, select_largest(residual[worker], first, end, config->density,
                                                          is_selected));
        for (i = first; i < end; i++) {
            float entry = pushed(config, worker, i, is_selected[i]);
            float change = is_selected[i] ? change_of(config, i, entry) : 0;
            model[i] += change;
            for (other = 0; other < world_size; other++) {
                owed[other][i] += change;
            }
        }
        bytes += sparse_bytes(end - first, select_largest(owed[worker], first, end, secondary, is_selected));
        for (i = first; i < end; i++) {
            if (is_selected[i]) {
                known[worker][i] += owed[worker][i];
                owed[worker][i] = 0;
            }
        }
    }
    return bytes;
}

static void check_equal(const struct setting *setting, const float *found, const float *expected)
{
    size_t i;

    for (i = 0; i < N; i++) {
        if (found[i] != expected[i]) {
            fprintf(stderr, "%s: element %d is %.9g, expected %.9g\n", setting->name, (int)i, found[i],
                    expected[i]);
            exit(1);
        }
    }
}

static void ends_well(brv_request *request)
{
    CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
    brv_request_free(request);
}

/* A step of this rank, in one of three ways. */
static void take_step(brv_server *server, uint32_t step, int worker, float *parameters,
                      brv_server_step *figures)
{
    static float gradients[N];
    const float *gradient = gradients;
    brv_options options = within(60);
    brv_request *request = NULL;
    size_t i;

    for (i = 0; i < N; i++) {
        gradients[i] = gradient_of(step, worker, i);
    }
    switch (step % 3) {
    case 0:
        CHECK(brv_server_take_step(server, &gradient, RATE, &parameters, 1, figures, &options) == BRV_OK);
        return;
    case 1:
        CHECK(brv_iserver_take_step(server, &gradient, RATE, &parameters, 1, figures, &request, &options) ==
              BRV_OK);
        /* The pointers are copied, and the gradients are used no longer. */
        gradient = NULL;
        memset(gradients, 0, sizeof gradients);
        break;
    default:
        CHECK(brv_server_push(server, &gradient, RATE, 1, &options) == BRV_OK);
        CHECK(brv_iserver_pull(server, &parameters, 1, figures, &request, &options) == BRV_OK);
    }
    ends_well(request);
}

/* Rounded values lose nothing: what all have handed in is in the model, or in residuals. */
static void check_mass(brv_group *group, brv_server *server, const float *parameters)
{
    float left[N];
    size_t i;

    CHECK(brv_server_residual(server, "all", left, N) == BRV_OK);
    CHECK(brv_all_reduce(group, left, left, N, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    for (i = 0; i < N; i++) {
        CHECK(fabsf(RATE * (handed_in[i] - left[i]) + parameters[i]) < 1e-3f);
    }
}

static void runs(brv_group *group, const struct setting *setting)
{
    static float parameters[N], zeros[N];
    float *place = parameters;
    const float *begins = zeros;
    const size_t shape[] = {N};
    brv_options options = within(60);
    brv_server_step figures = BRV_SERVER_STEP_INIT;
    brv_request *request = NULL;
    brv_server *server = NULL;
    uint32_t step;
    int worker;
    size_t i;

    memset(model, 0, sizeof model);
    memset(squares, 0, sizeof squares);
    memset(velocity, 0, sizeof velocity);
    memset(residual, 0, sizeof residual);
    memset(owed, 0, sizeof owed);
    memset(known, 0, sizeof known);
    memset(handed_in, 0, sizeof handed_in);
    memset(parameters, 1, sizeof parameters);
    CHECK(brv_server_new(group, &setting->config, &server) == BRV_OK);
    CHECK(brv_server_add(server, "all", shape, 1) == BRV_OK);
    CHECK(brv_server_begin(server, &begins, 1, &options) == BRV_OK);
    CHECK(brv_iserver_fetch(server, &place, 1, &request, &options) == BRV_OK);
    ends_well(request);
    check_equal(setting, parameters, zeros);
    CHECK(brv_barrier(group, &options) == BRV_OK);
    for (step = 0; step < STEPS; step++) {
        for (worker = 0; worker < world_size; worker++) {
            size_t bytes = model_step(&setting->config, worker, step);
            for (i = 0; i < N; i++) {
                handed_in[i] += gradient_of(step, worker, i);
            }
            if (worker == brv_group_rank(group)) {
                take_step(server, step, worker, parameters, &figures);
                CHECK(figures.clock == step * (uint64_t)world_size + (uint64_t)worker + 1);
                CHECK(setting->is_rounded ? figures.bytes < bytes : figures.bytes == bytes);
                if (!setting->is_rounded) {
                    check_equal(setting, parameters, known[worker]);
                }
            }
            CHECK(brv_barrier(group, &options) == BRV_OK);
        }
    }
    CHECK(brv_server_fetch(server, &place, 1, &options) == BRV_OK);
    if (setting->is_rounded) {
        check_mass(group, server, parameters);
    } else {
        check_equal(setting, parameters, model);
    }
    CHECK(brv_server_leave(server, &options) == BRV_OK);
    brv_server_free(server);
}

static brv_server_config config_of(uint32_t method)
{
    brv_server_config config = BRV_SERVER_CONFIG_INIT;

    config.method = method;
    config.density = method == BRV_SERVER_ASGD ? 0 : 0.125;
    config.momentum = MOMENTUM;
    config.codec = BRV_CODEC_BITMAP;
    return config;
}

int main(void)
{
    struct setting settings[] = {
        {"asgd", config_of(BRV_SERVER_ASGD), 0},
        {"dgs", config_of(BRV_SERVER_DGS), 0},
        {"dgc with a secondary density", config_of(BRV_SERVER_DGC), 0},
        {"adagrad and staleness", config_of(BRV_SERVER_GRADIENT_DROPPING), 0},
        {"1 bit", config_of(BRV_SERVER_GRADIENT_DROPPING), 1},
        {"2 bits and a threshold for a shard", config_of(BRV_SERVER_GRADIENT_DROPPING), 1},
    };
    brv_group *group = join();
    size_t i;

    world_size = brv_group_size(group);
    CHECK(world_size <= MOST_RANKS);
    settings[2].config.secondary_density = 0.0625;
    settings[3].config.rule = BRV_SERVER_ADAGRAD;
    settings[3].config.epsilon = 1e-8;
    /* By turns, a worker is one step ahead of the next ones. */
    settings[3].config.staleness = 1;
    settings[4].config.values = BRV_VALUES_ONE_BIT_MEAN;
    settings[5].config.values = BRV_VALUES_TWO_BIT_MEAN;
    settings[5].config.threshold = BRV_THRESHOLD_SHARD;
    for (i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        runs(group, &settings[i]);
    }
    brv_group_free(group);
    return 0;
}
