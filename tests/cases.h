/* cases: one table of layers and shapes. It serves the kernels against ref, gradients against
 * finite differences, and the micro-benchmark. A case is job text: what a user would write. */
#ifndef TT_CASES_H
#define TT_CASES_H

typedef struct tt_case {
    const char *name, *input, *layers;
    int n;     /* samples; 0: too large for ref, for the micro-benchmark alone                    */
    int bench; /* samples in the micro-benchmark; 0: 64. Else the case is as large as in use, and
                * too large for finite differences */
} tt_case;

static const tt_case tt_cases[] = {
    {"dense", "[7]", "- dense: {out: 5}", 3},
    {"dense wide", "[64]", "- dense: {out: 48}", 33},
    {"dense without bias", "[30]", "- dense: {out: 17, bias: false}", 16},
    {"dense and relu", "[20]", "- dense: {out: 19}\n- relu\n- dense: {out: 3}", 18},
    {"dense of one", "[1]", "- dense: {out: 1}", 1},
    {"conv", "[3, 9, 8]", "- conv: {out: 4, kernel: 3}", 5},
    {"conv of one channel", "[1, 12, 12]", "- conv: {out: 10, kernel: 5}", 17},
    {"conv padded", "[5, 7, 7]", "- conv: {out: 6, kernel: 3, padding: 1}", 9},
    {"conv same", "[4, 9, 7]", "- conv: {out: 6, kernel: 4, padding: same}", 8},
    {"conv strided", "[8, 11, 10]", "- conv: {out: 16, kernel: 3, stride: 2, padding: 1}", 4},
    {"conv dilated", "[6, 13, 12]", "- conv: {out: 7, kernel: 3, dilation: 2}", 10},
    {"conv in groups", "[8, 6, 6]", "- conv: {out: 12, kernel: 3, groups: 4, padding: 1}", 3},
    {"conv by channel", "[9, 8, 8]", "- conv: {out: 9, kernel: 3, groups: 9, padding: 1}", 9},
    {"conv uneven", "[3, 10, 14]",
     "- conv: {out: 5, kernel: [1, 7], stride: [1, 2], padding: [0, 3]}", 6},
    {"conv 1x1", "[40, 5, 5]", "- conv: {out: 48, kernel: 1}", 5},
    {"conv 1x1 strided", "[40, 6, 6]", "- conv: {out: 35, kernel: 1, stride: 2, bias: false}", 4},
    {"conv of many channels", "[48, 6, 6]", "- conv: {out: 64, kernel: 3, padding: 1}", 3},
    {"conv 7x7 stride 2", "[3, 23, 23]", "- conv: {out: 40, kernel: 7, stride: 2, padding: 3}", 2},
    {"conv, pool, relu", "[2, 14, 14]", "- conv: {out: 7, kernel: 5}\n- maxpool: {size: 2}\n- relu",
     19},
    {"conv, relu, pool", "[3, 11, 11]",
     "- conv: {out: 12, kernel: 3, padding: 1}\n- relu\n- maxpool: {size: 3}", 16},
    {"conv, pool", "[3, 10, 9]", "- conv: {out: 5, kernel: 2}\n- maxpool: {size: [3, 2]}", 11},
    {"two convs and dense", "[1, 16, 16]",
     "- conv: {out: 6, kernel: 5}\n- maxpool: {size: 2}\n- relu\n- conv: {out: 11, kernel: 3}\n- "
     "relu\n- flatten\n- dense: {out: 9}",
     21},
    {"wide conv and dense", "[3, 8, 8]",
     "- conv: {out: 40, kernel: 3}\n- relu\n- flatten\n- dense: {out: 9}", 5},
    {"maxpool", "[5, 9, 9]", "- maxpool: {size: 2}", 7},
    {"maxpool overlapping", "[6, 9, 9]", "- maxpool: {size: 3, stride: 2, padding: 1}", 4},
    {"avgpool", "[5, 9, 8]", "- avgpool: {size: [3, 2], stride: 2}", 7},
    {"avgpool padded", "[5, 7, 7]", "- avgpool: {size: 3, stride: 2, padding: 1}", 3},
    {"avgpool without padding's count", "[5, 7, 7]",
     "- avgpool: {size: 3, stride: 2, padding: 1, count_pad: false}", 3},
    {"global average", "[33, 5, 4]", "- global_avgpool\n- flatten", 6},
    {"global average of lanes", "[3, 7, 7]",
     "- conv: {out: 6, kernel: 3}\n- global_avgpool\n- flatten\n- dense: {out: 4}", 18},
    {"batch norm", "[7, 5, 5]", "- batchnorm", 6},
    {"batch norm of vectors", "[13]", "- batchnorm", 9},
    {"conv, norm, relu", "[3, 8, 8]", "- conv: {out: 33, kernel: 3}\n- batchnorm\n- relu", 5},
    {"small conv, norm, relu", "[3, 8, 8]",
     "- conv: {out: 6, kernel: 3}\n- batchnorm\n- relu\n- conv: {out: 5, kernel: 3}", 18},
    {"residual block", "[36, 6, 6]",
     "- conv: {name: c1, out: 36, kernel: 3, padding: 1}\n- batchnorm\n- relu\n- conv: {out: 36, "
     "kernel: 3, padding: 1}\n"
     "- batchnorm: {name: b2}\n- add: {from: [b2, c1]}\n- relu",
     4},
    {"residual with projection", "[10, 8, 8]",
     "- conv: {name: c0, out: 12, kernel: 3}\n- conv: {name: c1, out: 20, kernel: 3, stride: 2, "
     "padding: 1}\n- batchnorm: {name: b1}\n"
     "- conv: {from: c0, out: 20, kernel: 1, stride: 2}\n- batchnorm: {name: b2}\n- add: {from: "
     "[b1, b2]}\n- relu\n- flatten\n- dense: {out: 5}",
     17},
    {"layer norm", "[40]", "- layernorm", 5},
    {"layer norm of lanes", "[12]", "- dense: {out: 24}\n- layernorm\n- gelu\n- dense: {out: 8}",
     20},
    {"layer norm of rows", "[4, 12]", "- layernorm", 5},
    {"layer norm of images", "[3, 4, 5]", "- layernorm: {dims: 3}", 5},
    {"add", "[3, 6, 6]",
     "- conv: {name: a, out: 4, kernel: 3}\n- conv: {name: b, out: 4, kernel: 3, from: input}\n- "
     "add: {from: [a, b]}",
     9},
    {"add of three", "[9]",
     "- dense: {name: a, out: 6}\n- tanh: {name: t}\n- sigmoid: {name: s, from: a}\n- add: {from: "
     "[a, t, s]}",
     17},
    {"add to itself", "[9]", "- dense: {name: a, out: 6}\n- add: {from: [a, a]}", 5},
    {"add of one twice among others", "[9]",
     "- dense: {name: a, out: 6}\n- dense: {name: b, out: 6}\n- add: {from: [a, b, a]}", 5},
    {"add of one thrice", "[9]", "- dense: {name: a, out: 6}\n- add: {from: [a, a, a]}", 5},
    {"norm added to its own input", "[5, 4, 4]",
     "- conv: {name: c, out: 6, kernel: 1}\n- batchnorm: {name: b}\n- add: {from: [b, c]}\n- relu",
     6},
    {"layer that nobody hears of", "[9]",
     "- dense: {name: a, out: 6}\n- dense: {name: b, out: 4}\n- tanh: {from: a}", 5},
    {"frozen layer between others", "[9]",
     "- dense: {out: 8}\n- dense: {out: 7, freeze: true}\n- tanh\n- dense: {out: 3}", 18},
    {"frozen norm", "[6, 5, 5]",
     "- conv: {out: 8, kernel: 3}\n- batchnorm: {freeze: true}\n- relu\n- conv: {out: 4, kernel: "
     "1}",
     9},
    {"conv with everything", "[8, 13, 12]",
     "- conv: {out: 12, kernel: [3, 2], groups: 4, stride: [2, 1], dilation: [2, 3], padding: [3, "
     "1]}",
     6},
    {"mul", "[9]", "- dense: {name: a, out: 6}\n- sigmoid: {name: g}\n- mul: {from: [a, g]}", 17},
    {"concat", "[3, 6, 6]",
     "- conv: {name: a, out: 4, kernel: 3}\n- conv: {name: b, out: 35, kernel: 3, from: input}\n- "
     "concat: {from: [a, b, a]}\n- relu",
     9},
    {"concat of vectors", "[9]",
     "- dense: {name: a, out: 6}\n- dense: {name: b, out: 3}\n- concat: {from: [b, a, input]}\n- "
     "dense: {out: 4}",
     20},
    {"relu", "[50]", "- relu", 4},
    {"gelu", "[50]", "- gelu", 4},
    {"tanh", "[50]", "- tanh", 4},
    {"sigmoid", "[50]", "- sigmoid", 4},
    {"softmax", "[11]", "- softmax", 6},
    {"log-softmax", "[11]", "- log_softmax", 6},
    {"log-softmax of lanes", "[6]", "- dense: {out: 10}\n- log_softmax", 21},
    {"softmax of channels", "[5, 3, 4]", "- softmax", 6},
    {"softmax of the last", "[5, 3, 4]", "- softmax: {axis: -1}", 6},
    {"dropout", "[40]", "- dropout: {p: 0.4}", 6},
    {"dropout of lanes", "[3, 6, 6]",
     "- conv: {out: 5, kernel: 3}\n- dropout: {p: 0.3}\n- flatten\n- dense: {out: 6}", 18},
    {"dropout of channels", "[3, 6, 6]",
     "- conv: {out: 40, kernel: 3}\n- dropout: {p: 0.3}\n- relu", 3},
    {"repeat", "[12]",
     "- repeat: {times: 3, layers: [dense: {out: 12, name: d}, tanh, add: {from: [prev, in]}]}", 9},
    {"image used twice", "[4, 6, 6]",
     "- conv: {name: a, out: 6, kernel: 3}\n- flatten: {name: f}\n- dense: {name: d, out: 96}\n- "
     "mul: {from: [d, f]}",
     9},
    /* as they stand in the CNNs, the MLP, ResNet-18 (CIFAR) and ResNet-50 */
    {"CNN, first", "[1, 28, 28]", "- conv: {out: 10, kernel: 5}\n- maxpool: {size: 2}\n- relu", 9,
     64},
    {"CNN, second", "[10, 12, 12]", "- conv: {out: 20, kernel: 5}\n- maxpool: {size: 2}\n- relu", 9,
     64},
    {"CNN 2, second", "[12, 16, 16]",
     "- conv: {out: 24, kernel: 3, padding: 1}\n- maxpool: {size: 2}\n- relu", 9, 64},
    {"MLP, first", "[784]", "- dense: {out: 512}\n- relu", 17, 128},
    {"ResNet-18, stage 1", "[64, 32, 32]", "- conv: {out: 64, kernel: 3, padding: 1, bias: false}",
     0, 64},
    {"ResNet-18, stage 4", "[512, 4, 4]", "- conv: {out: 512, kernel: 3, padding: 1, bias: false}",
     0, 64},
    {"ResNet-18, norm and relu", "[64, 32, 32]", "- batchnorm\n- relu", 2, 64},
    {"ResNet-50, stem", "[3, 224, 224]",
     "- conv: {out: 64, kernel: 7, stride: 2, padding: 3, bias: false}", 0, 8},
    {"ResNet-50, pool", "[64, 112, 112]", "- maxpool: {size: 3, stride: 2, padding: 1}", 1, 8},
    {"ResNet-50, 1x1 down", "[256, 56, 56]", "- conv: {out: 64, kernel: 1, bias: false}", 0, 8},
    {"ResNet-50, 1x1 up", "[256, 14, 14]", "- conv: {out: 1024, kernel: 1, bias: false}", 0, 8},
    {"ResNet-50, 1x1 strided", "[256, 56, 56]",
     "- conv: {out: 512, kernel: 1, stride: 2, bias: false}", 0, 8},
    {"ResNet-50, 3x3 strided", "[128, 56, 56]",
     "- conv: {out: 128, kernel: 3, stride: 2, padding: 1, bias: false}", 0, 8},
};

#endif
