#include "test.h"

#include "cluster/cluster.h"

static void expect_bad(const char *part, const char *text)
{
    tt_tf_config c;

    EXPECT_ERR(TT_EINVAL, tt_tf_config_parse(text, &c));
    EXPECT_MESSAGE("TF_CONFIG");
    EXPECT_MESSAGE(part);
    EXPECT(!c.rank && c.ranks == 0 && c.me == -1);
}

TT_TEST(tf_config, ranks_are_the_chief_and_then_the_workers)
{
    tt_tf_config c;

    /* the order of the roles in the text does not matter */
    EXPECT_OK(tt_tf_config_parse("{\"cluster\": {\"ps\": [\"h3:1\", \"h4:1\"], \"worker\": "
                                 "[\"h1:2222\", \"h2:65535\"], \"chief\": [\"h0:1\"]},\n"
                                 " \"task\": {\"type\": \"worker\", \"index\": 1}, "
                                 "\"rpc_layer\": \"grpc\"}",
                                 &c));
    EXPECT_INT(3, c.ranks);
    EXPECT_INT(2, c.servers);
    EXPECT_STR("h0", c.rank[0].host);
    EXPECT_STR("h1", c.rank[1].host);
    EXPECT_INT(2222, c.rank[1].port);
    EXPECT_STR("h2", c.rank[2].host);
    EXPECT_STR("worker", c.type);
    EXPECT_INT(1, c.index);
    EXPECT_INT(2, c.me);
    tt_tf_config_free(&c);
    EXPECT(!c.rank);
    tt_tf_config_free(&c);
}

TT_TEST(tf_config, without_a_chief_worker_0_is_rank_0)
{
    tt_tf_config c;

    EXPECT_OK(
        tt_tf_config_parse("{\"cluster\": {\"worker\": [\"a:1\", \"[fe80::2]:2\"]}, \"task\": "
                           "{\"type\": \"worker\", \"index\": 0}}",
                           &c));
    EXPECT_INT(2, c.ranks);
    EXPECT_INT(0, c.me);
    EXPECT_STR("fe80::2", c.rank[1].host);
    tt_tf_config_free(&c);
}

static void expect_task(const char *task, const char *type, int index, int me)
{
    char text[512];
    tt_tf_config c;

    snprintf(text, sizeof text,
             "{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\"], \"ps\": [\"c:1\", "
             "\"d:1\"]}, \"task\": %s}",
             task);
    EXPECT_OK(tt_tf_config_parse(text, &c));
    EXPECT_STR(type, c.type);
    EXPECT_INT(index, c.index);
    EXPECT_INT(me, c.me);
    tt_tf_config_free(&c);
}

TT_TEST(tf_config, a_task_may_have_no_rank)
{
    expect_task("{\"type\": \"chief\", \"index\": 0}", "chief", 0, 0);
    expect_task("{\"type\": \"worker\", \"index\": 0}", "worker", 0, 1);
    expect_task("{\"type\": \"ps\", \"index\": 1}", "ps", 1, -1);
    expect_task("{\"type\": \"evaluator\", \"index\": 3}", "evaluator", 3, -1);
    expect_task("{}", "", 0, -1);
    expect_task("null", "", 0, -1);
}

TT_TEST(tf_config, master_is_the_old_word_for_chief)
{
    tt_tf_config c;

    EXPECT_OK(tt_tf_config_parse("{\"cluster\": {\"worker\": [\"b:1\"], \"master\": [\"a:1\"]}, "
                                 "\"task\": {\"type\": \"master\", \"index\": 0}}",
                                 &c));
    EXPECT_STR("a", c.rank[0].host);
    EXPECT_STR("chief", c.type);
    EXPECT_INT(0, c.me);
    tt_tf_config_free(&c);
}

TT_TEST(tf_config, no_cluster_is_one_process)
{
    static const char *const texts[] = {
        NULL,
        "",
        " \n",
        "{}",
        "{\"task\": {\"type\": \"worker\", \"index\": 0}}",
        "{\"cluster\": {}}",
        "{\"cluster\": null}",
        "{\"cluster\": {\"worker\": []}}",
    };
    tt_tf_config c;

    for (int i = 0; i < TT_COUNT(texts); i++) {
        EXPECT_OK(tt_tf_config_parse(texts[i], &c));
        EXPECT_INT(0, c.ranks);
        EXPECT_INT(-1, c.me);
        EXPECT_STR("", c.type);
        tt_tf_config_free(&c);
    }
}

TT_TEST(tf_config, hosts_have_their_ranks_as_slots)
{
    tt_tf_config c;
    tt_hosts h;

    EXPECT_OK(tt_tf_config_parse("{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\", "
                                 "\"a:2\", \"c:1\", \"b:2\"], \"ps\": [\"z:1\"]}}",
                                 &c));
    EXPECT_OK(tt_tf_config_hosts(&c, &h));
    EXPECT_INT(3, h.count);
    EXPECT(!strcmp(h.host[0].name, "a") && h.host[0].slots == 2);
    EXPECT(!strcmp(h.host[1].name, "b") && h.host[1].slots == 2);
    EXPECT(!strcmp(h.host[2].name, "c") && h.host[2].slots == 1);
    EXPECT_INT(c.ranks, tt_hosts_slots(&h));
    tt_hosts_free(&h);
    tt_tf_config_free(&c);
    EXPECT_OK(tt_tf_config_hosts(&c, &h)); /* of nobody */
    EXPECT_INT(0, h.count);
    tt_hosts_free(&h);
}

TT_TEST(tf_config, bad_json_is_told_by_line_and_column)
{
    expect_bad("TF_CONFIG:2:", "{\"cluster\":\n {\"worker\": [\"a:1\",]}}");
    expect_bad("TF_CONFIG:1:7: not JSON: invalid token near 'cluster'", "cluster");
    expect_bad("JSON takes double quotes alone", "{'cluster': {'worker': ['a:1']}}");
    expect_bad("duplicate object key", "{\"cluster\": {}, \"cluster\": {}}");
    expect_bad("must be a JSON object", "[1]");
    expect_bad("must be a JSON object", "7");
    expect_bad("not JSON", "{\"cluster\": {}} x");
    expect_bad("not JSON", "{\"cluster\": \"\xff\"}");
}

TT_TEST(tf_config, deep_nesting_is_refused)
{
    enum { DEEP = 100000 };
    char *text = malloc(DEEP + 1);

    memset(text, '[', DEEP);
    text[DEEP] = 0;
    expect_bad("not JSON", text);
    free(text);
}

TT_TEST(tf_config, roles_are_checked)
{
    expect_bad("cluster: unknown role 'workers': did you mean 'worker'?",
               "{\"cluster\": {\"workers\": [\"a:1\"]}}");
    expect_bad("cluster: unknown role 'bystander': there are chief, worker and ps",
               "{\"cluster\": {\"bystander\": [\"a:1\"]}}");
    expect_bad("takes no part in the cluster",
               "{\"cluster\": {\"worker\": [\"a:1\"], \"evaluator\": [\"b:1\"]}}");
    expect_bad("cluster.chief names 2 tasks", "{\"cluster\": {\"chief\": [\"a:1\", \"b:1\"]}}");
    expect_bad("both chief and master",
               "{\"cluster\": {\"chief\": [\"a:1\"], \"master\": [\"b:1\"]}}");
    expect_bad("no chief and no worker", "{\"cluster\": {\"ps\": [\"a:1\"]}}");
    expect_bad("cluster must be an object", "{\"cluster\": [\"a:1\"]}");
    expect_bad("cluster.worker must be a list", "{\"cluster\": {\"worker\": \"a:1\"}}");
}

TT_TEST(tf_config, addresses_are_checked)
{
    expect_bad("cluster.worker[1] must be a string", "{\"cluster\": {\"worker\": [\"a:1\", 2]}}");
    expect_bad("cluster.worker[1]: the address 'b' has no port: write b:2222",
               "{\"cluster\": {\"worker\": [\"a:1\", \"b\"]}}");
    expect_bad("cluster.worker[0]: the address 'a:0' has a port that is no number from 1 to 65535",
               "{\"cluster\": {\"worker\": [\"a:0\"]}}");
    expect_bad("has a port", "{\"cluster\": {\"worker\": [\"a:65536\"]}}");
    expect_bad("has a port", "{\"cluster\": {\"worker\": [\"a:\"]}}");
    expect_bad("has several colons", "{\"cluster\": {\"worker\": [\"http://a:1\"]}}");
    expect_bad("cluster.ps[0]: the address 'a b:1' is no host name",
               "{\"cluster\": {\"worker\": [\"a:1\"], \"ps\": [\"a b:1\"]}}");
    expect_bad("the address '' is empty", "{\"cluster\": {\"chief\": [\"\"]}}");
}

TT_TEST(tf_config, an_address_belongs_to_one_task)
{
    tt_tf_config c;

    expect_bad("cluster.worker[0] and cluster.worker[2] have the same address a:1",
               "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\", \"a:1\"]}}");
    expect_bad("cluster.chief[0] and cluster.ps[1] have the same address a:1",
               "{\"cluster\": {\"ps\": [\"b:1\", \"a:1\"], \"chief\": [\"a:1\"]}}");
    EXPECT_OK(tt_tf_config_parse("{\"cluster\": {\"worker\": [\"a:1\", \"a:2\"]}}", &c));
    tt_tf_config_free(&c);
}

TT_TEST(tf_config, a_task_must_be_in_the_cluster)
{
#define WITH(task) "{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}, \"task\": " task "}"
    expect_bad("task.index is 2, but cluster.worker names 2: it must be from 0 to 1",
               WITH("{\"type\": \"worker\", \"index\": 2}"));
    expect_bad("task.index is -1", WITH("{\"type\": \"worker\", \"index\": -1}"));
    expect_bad("task.index is 9223372036854775807",
               WITH("{\"type\": \"worker\", \"index\": 9223372036854775807}"));
    expect_bad("task is a ps, but cluster names none", WITH("{\"type\": \"ps\", \"index\": 0}"));
    expect_bad("task is a chief, but cluster names none",
               WITH("{\"type\": \"chief\", \"index\": 0}"));
    expect_bad("task.type: unknown role 'wroker': did you mean 'worker'?",
               WITH("{\"type\": \"wroker\", \"index\": 0}"));
    expect_bad("task.type is missing or no string", WITH("{\"index\": 0}"));
    expect_bad("task.type is missing or no string", WITH("{\"type\": 1, \"index\": 0}"));
    expect_bad("task.index is missing or no number", WITH("{\"type\": \"worker\"}"));
    expect_bad("task.index is missing or no number: write 0, without quotes",
               WITH("{\"type\": \"worker\", \"index\": \"0\"}"));
    expect_bad("task.index is -2: it counts from 0",
               WITH("{\"type\": \"evaluator\", \"index\": -2}"));
    expect_bad("task must be an object", WITH("\"worker\""));
#undef WITH
}
