// What the functions in model.cpp work with: a context for the nodes, and weights by name.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Tensors = std::map<std::string, ggml_tensor *>;

// The weights whose names begin with a prefix and a dot.
class Weights {
public:
    Weights(const Tensors & tensors, std::string prefix)
        : tensors(tensors), prefix(std::move(prefix)) {}

    ggml_tensor * operator()(const char * name) const {
        const std::string full = prefix.empty() ? name : prefix + "." + name;
        const auto found = tensors.find(full);
        if (found == tensors.end()) {
            throw std::runtime_error("the weights hold no tensor named " + full);
        }
        return found->second;
    }

private:
    const Tensors & tensors;
    const std::string prefix;
};

struct Graph {
    ggml_context * ctx;
    const Tensors & tensors;
    bool conv_direct;  // convolve without im2col: less memory

    Weights weights(const std::string & prefix = "") const { return {tensors, prefix}; }
};

// An input or an output; `shape` is the model's, outermost first, ggml's order is the reverse.
struct Port {
    std::string name;
    std::string file;  // what an output is written to
    ggml_type type;
    std::vector<int64_t> shape;
};

extern const char * const model_name;
extern const size_t nodes_max;
extern const std::vector<Port> model_inputs;
extern const std::vector<Port> model_outputs;

// The nodes of the model: from its inputs to its outputs, both in the order of the lists above.
std::vector<ggml_tensor *> build(const Graph & g, const std::vector<ggml_tensor *> & inputs);
