// SPDX-License-Identifier: Apache-2.0
// RMS norm of 32 rows of 512 elements with a scale; four compute tiles own eight rows each.

#x = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#w = affine_set<(d0) : (d0 >= 0, -d0 + 511 >= 0)>
#rows = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#order1 = affine_map<(d0) -> (d0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>

func.func @rmsnorm_4x1(%x: index, %weight: index, %y: index, %eps: f32) attributes {grid = [4, 1]} {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant 0.001953125 : f32
  %id:2 = ktdp.get_compute_tile_id : index, index
  %row = arith.muli %id#0, %c8 : index
  %X = ktdp.construct_memory_view %x, sizes: [32, 512], strides: [512, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<32x512xf16>
  %W = ktdp.construct_memory_view %weight, sizes: [512], strides: [1] {coordinate_set = #w, memory_space = #ktdp.memory_space<global>} : memref<512xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [32, 512], strides: [512, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<32x512xf16>
  %xt = ktdp.construct_access_tile %X[%row, %c0] {access_tile_set = #rows, access_tile_order = #order2} : memref<32x512xf16> -> <8x512xindex>
  %wt = ktdp.construct_access_tile %W[%c0] {access_tile_set = #w, access_tile_order = #order1} : memref<512xf16> -> <512xindex>
  %yt = ktdp.construct_access_tile %Y[%row, %c0] {access_tile_set = #rows, access_tile_order = #order2} : memref<32x512xf16> -> <8x512xindex>
  %v16 = ktdp.load %xt : <8x512xindex> -> tensor<8x512xf16>
  %w16 = ktdp.load %wt : <512xindex> -> tensor<512xf16>
  %v = arith.extf %v16 : tensor<8x512xf16> to tensor<8x512xf32>
  %w = arith.extf %w16 : tensor<512xf16> to tensor<512xf32>
  %squares = arith.mulf %v, %v : tensor<8x512xf32>
  %column = tensor.empty() : tensor<8xf32>
  %wide = tensor.empty() : tensor<8x512xf32>
  %none = linalg.fill ins(%zero : f32) outs(%column : tensor<8xf32>) -> tensor<8xf32>
  %sum = linalg.reduce ins(%squares : tensor<8x512xf32>) outs(%none : tensor<8xf32>) dimensions = [1]
    (%in: f32, %acc: f32) {
      %t = arith.addf %in, %acc : f32
      linalg.yield %t : f32
    }
  %scales = tensor.splat %scale : tensor<8xf32>
  %epsilons = tensor.splat %eps : tensor<8xf32>
  %mean = arith.mulf %sum, %scales : tensor<8xf32>
  %shifted = arith.addf %mean, %epsilons : tensor<8xf32>
  %r = math.rsqrt %shifted : tensor<8xf32>
  %rs = linalg.broadcast ins(%r : tensor<8xf32>) outs(%wide : tensor<8x512xf32>) dimensions = [1]
  %ws = linalg.broadcast ins(%w : tensor<512xf32>) outs(%wide : tensor<8x512xf32>) dimensions = [0]
  %n = arith.mulf %v, %rs : tensor<8x512xf32>
  %out = arith.mulf %n, %ws : tensor<8x512xf32>
  %half = arith.truncf %out : tensor<8x512xf32> to tensor<8x512xf16>
  ktdp.store %half, %yt : tensor<8x512xf16>, <8x512xindex>
  return
}
