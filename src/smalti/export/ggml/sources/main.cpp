// Runs the model once: arrays in files in, arrays in files out.
#include "graph.h"
#include "npy.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "gguf.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

namespace {

struct Options {
    std::map<std::string, std::string> inputs;  // file by name
    std::string weights = MODEL_WEIGHTS;
    std::string output = ".";
    std::string device;
    int threads = (int) std::max(1u, std::thread::hardware_concurrency());
    int repeat = 1;
    bool conv_direct = false;
};

void print_usage(std::ostream & out, const char * program) {
    out << "usage: " << program << " [options] NAME=FILE...\n\n"
        << "Runs " << model_name << ". FILE is a .npy array, or raw little-endian elements.\n\n";
    const auto list = [&](const char * kind, const std::vector<Port> & ports) {
        for (const Port & port : ports) {
            out << kind << port.name << " " << ggml_type_name(port.type) << npy::text(port.shape);
            out << (port.file.empty() ? "" : " -> " + port.file) << "\n";
        }
    };
    list("  input   ", model_inputs);
    list("  output  ", model_outputs);
    out << "\n  -o, --output FOLDER   where outputs go; made if need be (default: here)\n"
        << "  --weights FILE        default: " << MODEL_WEIGHTS << "\n"
        << "  --device NAME         default: the first GPU, else the CPU; here:";
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        out << " " << ggml_backend_dev_name(ggml_backend_dev_get(i));
    }
    out << "\n  --threads N           threads of the CPU (default: all)\n"
        << "  --repeat N            run N times and print the seconds of each\n"
        << "  --conv-direct         convolve without im2col: less memory\n";
}

int whole_number(const std::string & option, const std::string & text) {
    char * end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != 0 || value < 1 || value > 100000) {
        throw std::runtime_error(option + " is '" + text + "'; a whole number from 1 is expected");
    }
    return (int) value;
}

// NAME=FILE; names may hold an '=', and then the longest name that fits is meant.
void take_input(Options & options, const std::string & argument) {
    const Port * best = nullptr;
    for (const Port & port : model_inputs) {
        const bool fits = argument.compare(0, port.name.size() + 1, port.name + "=") == 0;
        if (fits && (!best || port.name.size() > best->name.size())) {
            best = &port;
        }
    }
    if (!best) {
        throw std::runtime_error("'" + argument + "' is none of the inputs as NAME=FILE; see --help");
    }
    options.inputs[best->name] = argument.substr(best->name.size() + 1);
}

Options parse(int argc, char ** argv) {
    Options options;
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 == argc) {
                throw std::runtime_error(argument + " needs a value");
            }
            return argv[++i];
        };
        if (argument == "-h" || argument == "--help") {
            print_usage(std::cout, argv[0]);
            std::exit(0);
        } else if (argument == "-o" || argument == "--output") options.output = value();
        else if (argument == "--weights") options.weights = value();
        else if (argument == "--device") options.device = value();
        else if (argument == "--threads") options.threads = whole_number(argument, value());
        else if (argument == "--repeat") options.repeat = whole_number(argument, value());
        else if (argument == "--conv-direct") options.conv_direct = true;
        else take_input(options, argument);
    }
    for (const Port & port : model_inputs) {
        if (!options.inputs.count(port.name)) {
            throw std::runtime_error("the input " + port.name + " is missing; see --help");
        }
    }
    return options;
}

// The folder that outputs go to, made before anything is computed.
void make_folder(const std::string & path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (!std::filesystem::is_directory(path)) {
        throw std::runtime_error("cannot write to the folder " + path +
                                 (error ? ": " + error.message() : ": it is a file"));
    }
}

// ---------------------------------------------------------------------- devices

// The chosen device first; behind it the CPU, for operations that the device does not have.
std::vector<ggml_backend_ptr> open_backends(const Options & options) {
    ggml_backend_dev_t chosen = nullptr;
    if (!options.device.empty()) {
        chosen = ggml_backend_dev_by_name(options.device.c_str());
        if (!chosen) {
            throw std::runtime_error("no device is named '" + options.device + "'; see --help");
        }
    }
    for (const auto type : {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU}) {
        chosen = chosen ? chosen : ggml_backend_dev_by_type(type);
    }
    std::vector<ggml_backend_ptr> backends;
    if (chosen && ggml_backend_dev_type(chosen) != GGML_BACKEND_DEVICE_TYPE_CPU) {
        backends.emplace_back(ggml_backend_dev_init(chosen, nullptr));
    }
    backends.emplace_back(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    for (const ggml_backend_ptr & backend : backends) {
        if (!backend) {
            throw std::runtime_error("a device cannot be opened");
        }
    }
    ggml_backend_t cpu = backends.back().get();
    const auto reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    const auto set_threads = (ggml_backend_set_n_threads_t)
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set_threads) {
        set_threads(cpu, options.threads);
    }
    return backends;
}

// ---------------------------------------------------------------------- weights

struct LoadedWeights {
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    Tensors tensors;
};

// A GGUF file on a device. Names in the file are at most 63 bytes; the model's own are the strings
// of `smalti.names`, in the order of the tensors.
LoadedWeights load_weights(const std::string & path, ggml_backend_t backend) {
    LoadedWeights weights;
    ggml_context * ctx = nullptr;
    const gguf_context_ptr file(gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, &ctx}));
    weights.ctx.reset(ctx);
    const int64_t names = file ? gguf_find_key(file.get(), "smalti.names") : -1;
    const int64_t count = file ? gguf_get_n_tensors(file.get()) : 0;
    if (names < 0 || (int64_t) gguf_get_arr_n(file.get(), names) != count) {
        throw std::runtime_error("the weights " + path + " cannot be read, or are of another model");
    }
    if (count == 0) {
        return weights;
    }
    weights.buffer.reset(ggml_backend_alloc_ctx_tensors(ctx, backend));
    if (!weights.buffer) {
        throw std::runtime_error("there is not enough memory for the weights");
    }
    ggml_backend_buffer_set_usage(weights.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::ifstream stream(path, std::ios::binary);
    std::vector<char> bytes;
    for (int64_t i = 0; i < count; i++) {
        ggml_tensor * tensor = ggml_get_tensor(ctx, gguf_get_tensor_name(file.get(), i));
        bytes.resize(ggml_nbytes(tensor));
        stream.seekg((std::streamoff) (gguf_get_data_offset(file.get()) +
                                       gguf_get_tensor_offset(file.get(), i)));
        stream.read(bytes.data(), (std::streamsize) bytes.size());
        if (!stream) {
            throw std::runtime_error("the weights " + path + " are cut off");
        }
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
        weights.tensors[gguf_get_arr_str(file.get(), names, i)] = tensor;
    }
    return weights;
}

// ---------------------------------------------------------------------- a run

ggml_tensor * new_input(ggml_context * ctx, const Port & port) {
    std::vector<int64_t> shape = port.shape;
    while (shape.size() > GGML_MAX_DIMS) {  // ggml has at most four dimensions
        shape[1] *= shape[0];
        shape.erase(shape.begin());
    }
    std::reverse(shape.begin(), shape.end());
    shape.resize(GGML_MAX_DIMS, 1);
    ggml_tensor * tensor = ggml_new_tensor(ctx, port.type, GGML_MAX_DIMS, shape.data());
    ggml_set_name(tensor, port.name.c_str());
    ggml_set_input(tensor);
    return tensor;
}

void set_input(ggml_tensor * tensor, const Port & port, const std::string & path) {
    try {
        if (port.type == GGML_TYPE_I32) {
            const auto values = npy::read<int32_t>(path, port.shape);
            ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
        } else {
            const auto values = npy::read<float>(path, port.shape);
            ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
        }
    } catch (const std::runtime_error & error) {
        throw std::runtime_error("input " + port.name + ", " + path + ": " + error.what());
    }
}

void run(const Options & options) {
    make_folder(options.output);
    const std::vector<ggml_backend_ptr> owned = open_backends(options);
    std::vector<ggml_backend_t> backends;
    for (const ggml_backend_ptr & backend : owned) {
        backends.push_back(backend.get());
    }
    const LoadedWeights weights = load_weights(options.weights, backends[0]);

    const size_t bytes = nodes_max * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes_max, false);
    const ggml_context_ptr ctx(ggml_init({bytes, nullptr, /*no_alloc=*/true}));
    std::vector<ggml_tensor *> inputs;
    for (const Port & port : model_inputs) {
        inputs.push_back(new_input(ctx.get(), port));
    }
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), nodes_max, false);
    const std::vector<ggml_tensor *> outputs =
        build({ctx.get(), weights.tensors, options.conv_direct}, inputs);
    for (size_t i = 0; i < outputs.size(); i++) {
        ggml_set_name(outputs[i], model_outputs[i].name.c_str());
        for (ggml_tensor * held = outputs[i]; held; held = held->view_src) {
            ggml_set_output(held);
        }
        ggml_build_forward_expand(graph, outputs[i]);
    }

    const size_t tensors = ggml_graph_n_nodes(graph) + weights.tensors.size() + inputs.size();
    const ggml_backend_sched_ptr sched(ggml_backend_sched_new(
        backends.data(), nullptr, (int) backends.size(), tensors, false, true));
    if (!ggml_backend_sched_alloc_graph(sched.get(), graph)) {
        throw std::runtime_error("there is not enough memory for the graph; try --conv-direct");
    }
    for (int round = 0; round < options.repeat; round++) {
        for (size_t i = 0; i < inputs.size(); i++) {
            if (inputs[i]->buffer) {  // else no output depends on it
                set_input(inputs[i], model_inputs[i], options.inputs.at(model_inputs[i].name));
            }
        }
        const auto start = std::chrono::steady_clock::now();
        if (ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error("the graph cannot be computed");
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::cout << ggml_backend_name(backends[0]) << " " << took.count() << " s\n";
    }
    for (size_t i = 0; i < outputs.size(); i++) {
        const Port & port = model_outputs[i];
        std::vector<char> values(ggml_nbytes(outputs[i]));
        ggml_backend_tensor_get(outputs[i], values.data(), 0, values.size());
        npy::write(options.output + "/" + port.file, port.type == GGML_TYPE_I32 ? "<i4" : "<f4",
                   port.shape, values);
    }
}

}  // namespace

int main(int argc, char ** argv) {
    ggml_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) {
            std::cerr << text;
        }
    }, nullptr);
    ggml_backend_load_all();
    try {
        run(parse(argc, argv));
        return 0;
    } catch (const std::exception & error) {
        std::cerr << "error: " << error.what() << "\n";
        return 2;
    }
}
