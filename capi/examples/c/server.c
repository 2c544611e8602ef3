/* Least squares with a parameter server: workers train at their own pace, and push a tenth of each gradient.
 *
 *     gcc server.c -o server $(pkg-config --cflags --libs brevity)
 *     brevity run -n 4 -- ./server        # every rank works, and serves its share of the model
 *     brevity run -n 4 -- ./server 1      # the last rank serves, the others work
 *
 * Each worker makes data of its own for one model that all are to find. */
#include <brevity.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { FEATURES = 64, ROWS = 256, BATCH = 16, STEPS = 400 };

static const double RATE = 0.4;

static float inputs[ROWS][FEATURES], outputs[ROWS];
static float weight[FEATURES], bias[1];

static int fail(const char *what)
{
    fprintf(stderr, "server: %s: %s\n", what, brv_last_error());
    return 1;
}

/* A number between -1 and 1. */
static float random_number(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

static void make_data(uint32_t seed)
{
    int row, i;

    for (row = 0; row < ROWS; row++) {
        outputs[row] = 0.5f;
        for (i = 0; i < FEATURES; i++) {
            inputs[row][i] = random_number(&seed);
            outputs[row] += inputs[row][i] * (float)(i % 7 - 3);
        }
    }
}

/* What the model says of a row, less what is right. */
static float error_of(int row)
{
    float error = bias[0] - outputs[row];
    int i;

    for (i = 0; i < FEATURES; i++) {
        error += inputs[row][i] * weight[i];
    }
    return error;
}

static double loss(void)
{
    double sum = 0;
    int row;

    for (row = 0; row < ROWS; row++) {
        sum += (double)error_of(row) * error_of(row);
    }
    return sum / ROWS;
}

/* The gradient of half the loss of some rows. */
static void compute_gradients(int first, float *weight_gradient, float *bias_gradient)
{
    int row, i;

    *bias_gradient = 0;
    for (i = 0; i < FEATURES; i++) {
        weight_gradient[i] = 0;
    }
    for (row = first; row < first + BATCH; row++) {
        float error = error_of(row) / BATCH;
        *bias_gradient += error;
        for (i = 0; i < FEATURES; i++) {
            weight_gradient[i] += error * inputs[row][i];
        }
    }
}

static int work(brv_group *group, brv_server *server, double rate)
{
    float weight_gradient[FEATURES], bias_gradient[1];
    const float *gradients[] = {weight_gradient, bias_gradient};
    float *parameters[] = {weight, bias};
    brv_server_step figures = BRV_SERVER_STEP_INIT;
    double before;
    int step;

    make_data((uint32_t)brv_group_rank(group) + 1);
    if (brv_server_fetch(server, parameters, 2, NULL) != BRV_OK) {
        return fail("can't fetch the model");
    }
    before = loss();
    for (step = 0; step < STEPS; step++) {
        compute_gradients(step * BATCH % ROWS, weight_gradient, bias_gradient);
        /* What is not pushed now stays in the residuals, and is pushed later. */
        if (brv_server_take_step(server, gradients, rate, parameters, 2, &figures, NULL) != BRV_OK) {
            return fail("a step has failed");
        }
    }
    /* The whole model, with what the answers have not brought yet. */
    if (brv_server_fetch(server, parameters, 2, NULL) != BRV_OK) {
        return fail("can't fetch the model");
    }
    printf("rank %d: loss %g before, %g after %d steps of %d bytes\n", (int)brv_group_rank(group), before,
           loss(), STEPS, (int)figures.bytes);
    /* Where this rank serves too, it goes on until all workers have left. */
    return brv_server_leave(server, NULL) == BRV_OK ? 0 : fail("can't leave");
}

static int serve(brv_group *group, brv_server *server)
{
    brv_server_statistics done = BRV_SERVER_STATISTICS_INIT;

    /* The shard works on a thread of its own since it has begun; this waits for the last worker. */
    if (brv_server_serve(server, BRV_FOREVER, NULL) != BRV_OK ||
        brv_server_get_statistics(server, &done) != BRV_OK) {
        return fail("can't serve");
    }
    printf("rank %d: served %lu pushes\n", (int)brv_group_rank(group), (unsigned long)done.pushes);
    return 0;
}

static int run(brv_group *group, uint32_t servers, brv_server **server)
{
    static const size_t features[] = {FEATURES}, one[] = {1};
    const float *parameters[] = {weight, bias};
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    int workers = (int)brv_group_size(group) - (int)servers;

    config.method = BRV_SERVER_GRADIENT_DROPPING;
    config.density = 0.1;
    config.servers = servers;
    /* Of few elements, the largest of all are compared. */
    config.threshold = BRV_THRESHOLD_SHARD;
    if (brv_server_new(group, &config, server) != BRV_OK ||
        brv_server_add(*server, "weight", features, 1) != BRV_OK ||
        brv_server_add(*server, "bias", one, 1) != BRV_OK ||
        brv_server_begin(*server, parameters, 2, NULL) != BRV_OK) {
        return fail("can't begin");
    }
    return brv_server_is_worker(*server) ? work(group, *server, RATE / workers) : serve(group, *server);
}

int main(int argc, char **argv)
{
    char *rest = "";
    long servers = argc > 1 ? strtol(argv[1], &rest, 10) : 0;
    brv_group *group = NULL;
    brv_server *server = NULL;
    int failed;

    if (servers < 0 || servers > 1000 || *rest != '\0' || (argc > 1 && rest == argv[1])) {
        fprintf(stderr, "server: '%s' servers: expected a number below that of the ranks\n", argv[1]);
        return 2;
    }
    /* Warnings go to standard error. */
    brv_log_to_stderr();
    if (brv_group_join(NULL, &group) != BRV_OK) {
        return fail("can't join");
    }
    failed = run(group, (uint32_t)servers, &server);
    brv_server_free(server);
    brv_group_free(group);
    return failed;
}
