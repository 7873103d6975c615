// SPDX-License-Identifier: Apache-2.0
// Softmax over rows of a 4096 x 1024 matrix. Every compute tile owns 128 consecutive rows and takes one at a time.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 4095 >= 0, d1 >= 0, -d1 + 1023 >= 0)>
#row = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0, d1 >= 0, -d1 + 1023 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

module {
  func.func @softmax(%input: index, %output: index) attributes {grid = [32]} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %rows = arith.constant 128 : index
    %lowest = arith.constant 0xFC00 : f16
    %zero = arith.constant 0.0 : f16
    %id = ktdp.get_compute_tile_id : index
    %first = arith.muli %id, %rows : index
    %in = ktdp.construct_memory_view %input, sizes: [4096, 1024], strides: [1024, 1]
      {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<4096x1024xf16>
    %out = ktdp.construct_memory_view %output, sizes: [4096, 1024], strides: [1024, 1]
      {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<4096x1024xf16>
    scf.for %i = %c0 to %rows step %c1 {
      %row = arith.addi %first, %i : index
      %source = ktdp.construct_access_tile %in[%row, %c0] {access_tile_set = #row, access_tile_order = #order}
        : memref<4096x1024xf16> -> !ktdp.access_tile<1x1024xindex>
      %x = ktdp.load %source : !ktdp.access_tile<1x1024xindex> -> tensor<1x1024xf16>
      %one = tensor.empty() : tensor<1xf16>
      %wide = tensor.empty() : tensor<1x1024xf16>
      %floor = linalg.fill ins(%lowest : f16) outs(%one : tensor<1xf16>) -> tensor<1xf16>
      %peak = linalg.reduce { arith.maximumf } ins(%x : tensor<1x1024xf16>) outs(%floor : tensor<1xf16>) dimensions = [1]
      %peaks = linalg.broadcast ins(%peak : tensor<1xf16>) outs(%wide : tensor<1x1024xf16>) dimensions = [1]
      %shifted = arith.subf %x, %peaks : tensor<1x1024xf16>
      %power = math.exp %shifted : tensor<1x1024xf16>
      %none = linalg.fill ins(%zero : f16) outs(%one : tensor<1xf16>) -> tensor<1xf16>
      %sum = linalg.reduce { arith.addf } ins(%power : tensor<1x1024xf16>) outs(%none : tensor<1xf16>) dimensions = [1]
      %sums = linalg.broadcast ins(%sum : tensor<1xf16>) outs(%wide : tensor<1x1024xf16>) dimensions = [1]
      %y = arith.divf %power, %sums : tensor<1x1024xf16>
      %target = ktdp.construct_access_tile %out[%row, %c0] {access_tile_set = #row, access_tile_order = #order}
        : memref<4096x1024xf16> -> !ktdp.access_tile<1x1024xindex>
      ktdp.store %y, %target : tensor<1x1024xf16>, !ktdp.access_tile<1x1024xindex>
    }
    return
  }
}
