// Forecasts a scene with an exported model and onnxruntime's C API.
//
//   forecast MODEL.onnx INPUTS.bin
//
// write_inputs.py writes INPUTS.bin. Every tensor is a line "NAME TYPE SIZE SIZE ...", then its bytes.
// Prints a line for each mode of each agent: agent, mode, probability, x and y of all steps in metres
// in the frame of the scene.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "onnxruntime_c_api.h"

static const OrtApi* api = OrtGetApiBase()->GetApi(ORT_API_VERSION);

static void fail(const std::string& message) {
  std::fprintf(stderr, "forecast: %s\n", message.c_str());
  std::exit(2);
}

static void check(OrtStatus* status) {
  if (status != nullptr) fail(api->GetErrorMessage(status));
}

struct Tensor {
  std::vector<char> bytes;
  OrtValue* value = nullptr;
};
using Tensors = std::map<std::string, Tensor>;

static ONNXTensorElementDataType element_type(const std::string& name) {
  if (name == "float32") return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  if (name == "int64") return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  if (name == "bool") return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  fail("unknown type " + name);
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

static Tensors read_tensors(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(std::string(path) + ": cannot be read");
  OrtMemoryInfo* cpu = nullptr;
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  Tensors tensors;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, type;
    words >> name >> type;
    std::vector<int64_t> shape;
    size_t count = 1;
    for (int64_t size; words >> size;) {
      shape.push_back(size);
      count *= static_cast<size_t>(size);
    }
    Tensor& tensor = tensors[name];
    const size_t width = type == "float32" ? 4 : type == "int64" ? 8 : 1;
    tensor.bytes.resize(count * width);
    if (!file.read(tensor.bytes.data(), tensor.bytes.size())) fail(name + ": file is truncated");
    check(api->CreateTensorWithDataAsOrtValue(cpu, tensor.bytes.data(), tensor.bytes.size(),
                                              shape.data(), shape.size(), element_type(type),
                                              &tensor.value));
  }
  return tensors;
}

// Runs a graph with the tensors of its inputs' names, and adds its outputs.
static void run(OrtEnv* env, const std::string& path, Tensors& tensors) {
  OrtSessionOptions* options = nullptr;
  check(api->CreateSessionOptions(&options));
  check(api->SetIntraOpNumThreads(options, 1));
  OrtSession* session = nullptr;
  check(api->CreateSession(env, path.c_str(), options, &session));
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));

  size_t num_inputs = 0, num_outputs = 0;
  check(api->SessionGetInputCount(session, &num_inputs));
  check(api->SessionGetOutputCount(session, &num_outputs));
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> inputs;
  for (size_t index = 0; index < num_inputs; ++index) {
    char* name = nullptr;
    check(api->SessionGetInputName(session, index, allocator, &name));
    if (tensors.count(name) == 0) fail(std::string("no input ") + name);
    input_names.push_back(name);
    inputs.push_back(tensors[name].value);
  }
  for (size_t index = 0; index < num_outputs; ++index) {
    char* name = nullptr;
    check(api->SessionGetOutputName(session, index, allocator, &name));
    output_names.push_back(name);
  }
  std::vector<OrtValue*> outputs(num_outputs, nullptr);
  check(api->Run(session, nullptr, input_names.data(), inputs.data(), num_inputs,
                 output_names.data(), num_outputs, outputs.data()));
  for (size_t index = 0; index < num_outputs; ++index) {
    tensors[output_names[index]].value = outputs[index];
  }
}

static const float* floats(const OrtValue* value, std::vector<int64_t>& shape) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api->GetTensorTypeAndShape(value, &info));
  size_t axes = 0;
  check(api->GetDimensionsCount(info, &axes));
  shape.resize(axes);
  check(api->GetDimensions(info, shape.data(), axes));
  void* data = nullptr;
  check(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return static_cast<const float*>(data);
}

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: forecast MODEL.onnx INPUTS.bin");
  if (api == nullptr) fail("the header is newer than the library");
  const std::string model = argv[1];
  const std::string stem = model.substr(0, model.rfind(".onnx"));
  OrtEnv* env = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "forecast", &env));
  Tensors tensors = read_tensors(argv[2]);

  // SE2Former has a graph for the map. A program that runs for longer keeps its outputs while the
  // map stays the same, and gives the new frame as map_offset.
  if (std::ifstream(stem + ".map.onnx")) run(env, stem + ".map.onnx", tensors);
  run(env, model, tensors);

  std::vector<int64_t> shape, ignored;  // [1, S, K, F, 2]
  const float* position = floats(tensors["trajectory"].value, shape);
  const float* probability = floats(tensors["probability"].value, ignored);
  for (int64_t agent = 0; agent < shape[1]; ++agent) {
    for (int64_t mode = 0; mode < shape[2]; ++mode) {
      std::printf("%ld %ld %.6f", long(agent), long(mode), *probability++);
      for (int64_t number = 0; number < 2 * shape[3]; ++number) std::printf(" %.4f", *position++);
      std::printf("\n");
    }
  }
  return 0;
}
